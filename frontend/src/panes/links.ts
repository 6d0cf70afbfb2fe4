// Links between spots of two panes.

import type { Spot } from "./lines";

export type { Spot };

export interface Link {
  readonly a: Spot;
  readonly b: Spot;
  readonly layer: number;
}

/** Returns links between spots with a common layer, strongest first. */
export function linksBetween(left: readonly Spot[], right: readonly Spot[], most: number): { links: Link[]; left: number } {
  const found: Link[] = [];
  for (const a of left) {
    for (const b of right) {
      const layer = a.layers.find((x) => b.layers.includes(x));
      if (layer !== undefined || !a.layers.length || !b.layers.length) found.push({ a, b, layer: layer ?? -1 });
    }
  }
  found.sort((x, y) => y.a.strength + y.b.strength - x.a.strength - x.b.strength);
  return { links: found.slice(0, most), left: Math.max(0, found.length - most) };
}
