// The slices of a timeline to draw at a zoom, and their places: slices narrower than a pixel are drawn
// together, so that a model of ten thousand layers costs no more than the width of the screen.

import type { Slice, Timeline } from "../wire";

export const TRACKS = ["layers", "kernels", "operators"] as const;
export type Track = (typeof TRACKS)[number];

export interface View {
  readonly from: number;
  readonly to: number;
}

export interface Drawn<S extends Slice = Slice> {
  readonly x: number;
  readonly width: number;
  /** Null if several slices are drawn together. */
  readonly slice: S | null;
  /** The slice, or the first of those drawn together. */
  readonly first: S;
  readonly count: number;
}

const NARROW = 1;

export function tracksOf(timeline: Timeline): ReadonlyMap<Track, readonly Slice[]> {
  const found = new Map<Track, Slice[]>(TRACKS.map((track) => [track, []]));
  for (const slice of timeline.slices) {
    if (slice.ns > 0) found.get(slice.track as Track)?.push(slice);
  }
  return found;
}

/** The end of all slices. */
export function spanOf(timeline: Timeline): number {
  return timeline.slices.reduce((end, slice) => Math.max(end, slice.start_ns + slice.ns), timeline.wall_ns || 1);
}

/** Returns the drawn slices of a track, whose slices follow each other, over `width` pixels. Only
 * slices that are alike are drawn together. */
export function drawn<S extends Slice>(slices: readonly S[], view: View, width: number, alike: (a: S, b: S) => boolean = () => true): Drawn<S>[] {
  const scale = width / (view.to - view.from);
  const found: Drawn<S>[] = [];
  let first: S | null = null;
  let [start, end, count] = [0, -1, 0];
  const flush = (): void => {
    if (first) found.push({ x: start, width: Math.max(NARROW, end - start), slice: null, first, count });
    first = null;
    count = 0;
  };
  for (let n = firstAfter(slices, view.from); n < slices.length; n++) {
    const slice = slices[n];
    if (!slice || slice.start_ns >= view.to) break;
    const x = Math.max(-2, (slice.start_ns - view.from) * scale);
    const right = Math.min(width + 2, (slice.start_ns + slice.ns - view.from) * scale);
    if (right - x >= NARROW) {
      flush();
      found.push({ x, width: right - x, slice, first: slice, count: 1 });
    } else {
      if (first && (right - start > 2 * NARROW || !alike(first, slice))) flush();
      if (!first) [start, first] = [x, slice];
      end = right;
      count++;
    }
  }
  flush();
  return found;
}

/** The first slice that ends after a time. */
function firstAfter(slices: readonly Slice[], time: number): number {
  let [low, high] = [0, slices.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    const slice = slices[middle];
    if (slice && slice.start_ns + slice.ns <= time) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** A view zoomed about a time, within the span; it is never narrower than some nanoseconds. */
export function zoomed(view: View, about: number, by: number, span: number): View {
  const width = Math.min(span, Math.max(20, (view.to - view.from) / by));
  const share = (about - view.from) / (view.to - view.from);
  return kept({ from: about - share * width, to: about + (1 - share) * width }, span);
}

export function moved(view: View, ns: number, span: number): View {
  return kept({ from: view.from + ns, to: view.to + ns }, span);
}

function kept(view: View, span: number): View {
  const width = Math.min(span, view.to - view.from);
  const from = Math.min(span - width, Math.max(0, view.from));
  return { from, to: from + width };
}

/** About five round times for ticks. */
export function marks(view: View): number[] {
  const rough = (view.to - view.from) / 4;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((digit) => digit * power).find((s) => s >= rough) ?? rough;
  const found: number[] = [];
  for (let at = Math.ceil(view.from / step) * step; at <= view.to; at += step) found.push(at);
  return found;
}
