// The inside of a region, in the form in which the page draws it: pieces of work and lines.

import type { RegionDetails, RegionTrack, Slice } from "../wire";

/** A piece of work on a track; `start_ns` and `ns` are in the unit of the region's timeline. */
export interface Piece extends Slice {
  /** The pieces of work that the server joined. */
  readonly count: number;
  readonly busy: number;
  readonly waited: number;
  readonly waitedFor: string;
  readonly layers: readonly number[];
}

export function piecesOf(track: RegionTrack): Piece[] {
  return track.begins.map((begin, n) => ({
    track: track.name,
    start_ns: begin,
    ns: (track.ends[n] ?? begin) - begin,
    text: track.texts[n] ?? "",
    ref: "",
    count: track.counts[n] ?? 1,
    busy: track.busy[n] ?? 0,
    waited: track.waited[n] ?? 0,
    waitedFor: track.waited_for[n] ?? "",
    layers: track.layers[n] ?? [],
  }));
}

/** Whether two pieces are of the same layers, and so may be drawn together. */
export function alike(a: Piece, b: Piece): boolean {
  return a.layers.length === b.layers.length && a.layers.every((layer, n) => layer === b.layers[n]);
}

export function endOf(details: RegionDetails): number {
  return details.tracks.reduce((end, track) => Math.max(end, track.ends[track.ends.length - 1] ?? 0), 1);
}

/** The places of the lines that contain all words of a search, in their text or a layer's name. */
export function linesWith(details: RegionDetails, wanted: string, nameOf: (layer: number) => string): number[] {
  const words = wanted.toLowerCase().split(/\s+/).filter(Boolean);
  const found: number[] = [];
  details.lines.forEach((line, n) => {
    const text = [line, ...(details.line_layers[n] ?? []).map(nameOf)].join(" ").toLowerCase();
    if (words.every((word) => text.includes(word))) found.push(n);
  });
  return found;
}

/** The pieces of work of all tracks, and whether some are joined. */
export function amounts(details: RegionDetails): { readonly total: number; readonly joined: boolean } {
  const total = details.tracks.reduce((sum, track) => sum + track.total, 0);
  return { total, joined: details.tracks.some((track) => track.begins.length < track.total) };
}
