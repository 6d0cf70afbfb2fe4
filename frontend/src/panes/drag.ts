// Things dragged onto a pane: a frame of the film strip, or another pane.

import type { PaneKind } from "../state";

export const DRAGGED = "application/x-clew";

export interface Dragged {
  readonly build: string;
  readonly kind: PaneKind;
  readonly arg: number;
  /** The pane that is dragged, -1 for a frame of the strip. */
  readonly key: number;
}

export function writeDragged(build: string, kind: PaneKind, arg: number, key = -1): string {
  return JSON.stringify({ build, kind, arg, key } satisfies Dragged);
}

export function readDragged(text: string | undefined): Dragged | null {
  if (!text) return null;
  try {
    return JSON.parse(text) as Dragged;
  } catch {
    return null;
  }
}
