// Screen positions of focused things in panes, for links drawn between panes. Panes register
// here and report movements; they never reference each other.

/** The screen position of a thing that belongs to the focus. */
export interface Spot {
  readonly left: number;
  readonly right: number;
  readonly top: number;
  readonly bottom: number;
  readonly layers: readonly number[];
  /** Greater for a closer relation (text/content.ts). */
  readonly strength: number;
}

export interface Screen {
  /** The visible spots, from top to bottom, at most `most`; and their total number. */
  spots(most: number): { readonly spots: readonly Spot[]; readonly total: number };
}

class Lines {
  private readonly screens = new Map<number, Screen>();
  private readonly waiting = new Set<() => void>();

  /** `key` is `Pane.key`. Call the returned function when the pane closes. */
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

  /** Reports that something scrolled, or that the focus changed. */
  moved(): void {
    for (const told of this.waiting) told();
  }

  onMoved(told: () => void): () => void {
    this.waiting.add(told);
    return () => this.waiting.delete(told);
  }
}

export const lines = new Lines();
