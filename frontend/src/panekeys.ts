// Keyboard actions inside a pane. A pane's component registers them here, and keyboard.ts asks the
// pane that has the focus; neither knows the other.

import { signal } from "@preact/signals";

export interface PaneKeys {
  /** Moves to the next (`by` 1) or previous (-1) line, row or node, and focuses it as hovering does. */
  readonly move?: (by: number) => void;
  /** Selects the focused thing, as a click does. */
  readonly choose?: () => void;
  /** Moves to the next (`by` 1) or previous (-1) place that belongs to the focus. */
  readonly step?: (by: number) => void;
  /** Opens the pane's own search. */
  readonly find?: () => void;
  /** Folds or unfolds at the focus. */
  readonly fold?: () => void;
  /** The pane's whole contents, for "copy" and "save as text". */
  readonly text?: () => string;
  /** The pane's drawing as an SVG document. */
  readonly svg?: () => string | Promise<string>;
}

/** The key (`Pane.key`) of the pane that has the keyboard. */
export const focusedPane = signal(-1);

const known = new Map<number, PaneKeys>();

/** Registers a pane's key actions; call the returned function when the pane closes: `useEffect(() => paneKeys(pane.key, {...}))`. */
export function paneKeys(key: number, keys: PaneKeys): () => void {
  known.set(key, keys);
  return () => {
    if (known.get(key) === keys) known.delete(key);
  };
}

export function keysOf(key: number): PaneKeys {
  return known.get(key) ?? {};
}
