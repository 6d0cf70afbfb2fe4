// Where panes have on the screen what is in focus: for links drawn between panes. Panes register
// here and say when something moved; they never hold each other.

/** A thing that belongs to what is in focus, where it is on the screen. */
export interface Spot {
  readonly left: number;
  readonly right: number;
  readonly top: number;
  readonly bottom: number;
  readonly layers: readonly number[];
  /** Greater for what has more to do with it (text/content.ts). */
  readonly strength: number;
}

export interface Screen {
  /** The spots in view, from top to bottom, at most `most`; and how many there are in all. */
  spots(most: number): { readonly spots: readonly Spot[]; readonly total: number };
}

class Lines {
  private readonly screens = new Map<number, Screen>();
  private readonly waiting = new Set<() => void>();

  /** `key` is `Pane.key`. Call what it returns when the pane goes. */
  register(key: number, screen: Screen): () => void {
    this.screens.set(key, screen);
    this.moved();
    return () => {
      if (this.screens.get(key) === screen) this.screens.delete(key);
      this.moved();
    };
  }

  of(key: number): Screen | undefined {
    return this.screens.get(key);
  }

  /** Says that something scrolled, or that something else is in focus. */
  moved(): void {
    for (const told of this.waiting) told();
  }

  onMoved(told: () => void): () => void {
    this.waiting.add(told);
    return () => this.waiting.delete(told);
  }
}

export const lines = new Lines();
