// Stepping through the places of a pane that belong to what is in focus: panes say how they do it.

type Step = (by: number) => void;

class Steps {
  private readonly known = new Map<number, Step>();

  register(key: number, step: Step): () => void {
    this.known.set(key, step);
    return () => {
      if (this.known.get(key) === step) this.known.delete(key);
    };
  }

  step(key: number, by: number): boolean {
    const step = this.known.get(key);
    step?.(by);
    return step !== undefined;
  }
}

export const steps = new Steps();
