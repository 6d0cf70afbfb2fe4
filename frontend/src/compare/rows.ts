// The layers in a difference pane, and their order.

import type { Diff, LayerChange } from "../wire";

export type Order = "model" | "time" | "error";
export const UNCHANGED = "unchanged";

export interface Wanted {
  readonly kinds: ReadonlySet<string>;
  readonly order: Order;
  readonly text: string;
}

/** Returns the layers to list: of any wanted kind (all if none is given), with the text in a name. */
export function listed(diff: Diff, wanted: Wanted, names: (change: LayerChange) => string): LayerChange[] {
  const text = wanted.text.trim().toLowerCase();
  const found = diff.layers.filter((change) => isWanted(change, wanted.kinds) && names(change).toLowerCase().includes(text));
  const figure = wanted.order === "time" ? gain : wanted.order === "error" ? (c: LayerChange) => c.error : null;
  if (!figure) return found;
  const size = (change: LayerChange): number => Math.abs(figure(change) ?? -1) || 0;
  return found
    .map((change, n) => ({ change, n, known: figure(change) !== null, size: size(change) }))
    .sort((x, y) => Number(y.known) - Number(x.known) || y.size - x.size || x.n - y.n)
    .map(({ change }) => change);
}

function isWanted(change: LayerChange, kinds: ReadonlySet<string>): boolean {
  if (!kinds.size) return true;
  return change.kinds.length ? change.kinds.some((kind) => kinds.has(kind)) : kinds.has(UNCHANGED);
}

/** The additional nanoseconds of a layer in B, null if either time is unknown; a missing layer takes 0. */
export function gain(change: LayerChange): number | null {
  const a = change.a < 0 ? 0 : change.a_ns;
  const b = change.b < 0 ? 0 : change.b_ns;
  return a === null || b === null || (change.a_ns === null && change.b_ns === null) ? null : b - a;
}

/** Kinds with their numbers of layers, the most first; unchanged layers last. */
function kindCounts(diff: Diff): [string, number][] {
  const counts = Object.entries(diff.kinds).filter(([kind, count]) => count > 0 && kind !== UNCHANGED);
  const same = diff.layers.filter((change) => !change.kinds.length).length;
  counts.sort((x, y) => y[1] - x[1]);
  return same ? [...counts, [UNCHANGED, same]] : counts;
}

/** The columns of a difference; columns without figures are left out. */
export interface Extent {
  readonly times: boolean;
  readonly errors: boolean;
  /** The largest change of time in nanoseconds, at least 1. */
  readonly largest: number;
  readonly kinds: readonly [string, number][];
}

export function extentOf(diff: Diff): Extent {
  let largest = 1;
  for (const change of diff.layers) largest = Math.max(largest, Math.abs(gain(change) ?? 0));
  return {
    times: diff.layers.some((change) => change.a_ns !== null || change.b_ns !== null),
    errors: diff.layers.some((change) => change.error !== null),
    largest,
    kinds: kindCounts(diff),
  };
}
