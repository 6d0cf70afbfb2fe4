// How wide panes are, as shares of the room: of this page only, not of its URL.

import { signal } from "@preact/signals";

export const sizes = signal<ReadonlyMap<number, number>>(new Map());

export function sizeOf(key: number): number {
  return sizes.value.get(key) ?? 1;
}

/** The least share that a pane keeps of what it and its neighbor have together. */
const LEAST = 0.12;

/** Moves the border between two panes by a share of their common width. */
export function moveBorder(left: number, right: number, by: number): void {
  const [a, b] = [sizes.peek().get(left) ?? 1, sizes.peek().get(right) ?? 1];
  const both = a + b;
  const share = Math.max(LEAST, Math.min(1 - LEAST, a / both + by));
  sizes.value = new Map(sizes.peek()).set(left, both * share).set(right, both * (1 - share));
}

export function evenOut(left: number, right: number): void {
  const both = (sizes.peek().get(left) ?? 1) + (sizes.peek().get(right) ?? 1);
  sizes.value = new Map(sizes.peek()).set(left, both / 2).set(right, both / 2);
}
