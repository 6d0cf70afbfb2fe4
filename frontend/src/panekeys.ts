// What the keyboard does inside a pane. Whoever draws a pane says so here, and keyboard.ts asks the
// pane that has the focus; neither knows the other.

import { signal } from "@preact/signals";

export interface PaneKeys {
  /** To the next (`by` 1) or previous (-1) line, row or node: points at it, as hovering does. */
  readonly move?: (by: number) => void;
  /** Chooses what is pointed at, as a click does. */
  readonly choose?: () => void;
  /** To the next (`by` 1) or previous (-1) place that belongs to what is in focus. */
  readonly step?: (by: number) => void;
  /** Opens the pane's own search. */
  readonly find?: () => void;
  /** Folds or unfolds what is pointed at. */
  readonly fold?: () => void;
  /** All that the pane shows, for "copy" and "save as text". */
  readonly text?: () => string;
  /** What the pane draws, as an SVG document. */
  readonly svg?: () => string | Promise<string>;
}

/** The key (`Pane.key`) of the pane that has the keyboard. */
export const focusedPane = signal(-1);

const known = new Map<number, PaneKeys>();

/** Says what keys do in a pane; call what it returns when the pane goes: `useEffect(() => paneKeys(pane.key, {...}))`. */
export function paneKeys(key: number, keys: PaneKeys): () => void {
  known.set(key, keys);
  return () => {
    if (known.get(key) === keys) known.delete(key);
  };
}

export function keysOf(key: number): PaneKeys {
  return known.get(key) ?? {};
}
