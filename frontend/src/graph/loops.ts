// Boxes around loops: the layers of the body and the loop's own layer.

import type { Loop, Overview } from "../wire";
import type { ClusterTree } from "./clusters";

/** `walk: 40 iterations`, or `grow: loop` if only a run determines its trip count. */
export function loopTitle(name: string, loop: Loop): string {
  return `${name}: ${loop.iterations === null ? "loop" : `${loop.iterations} ${loop.iterations === 1 ? "iteration" : "iterations"}`}`;
}

/** The cluster of each layer: that of its innermost loop, and below it that of its group. */
export function layerClusters(overview: Overview, paths: readonly (readonly string[])[], tree: ClusterTree): (layer: number) => number {
  const { loops, layers } = overview;
  // Loops stand before nested ones, so the innermost one overwrites the others.
  const innermost = new Map<number, number>();
  loops.forEach((loop, at) => {
    for (const layer of [...loop.layers, loop.layer]) innermost.set(layer, at);
  });
  const boxes: number[] = [];
  loops.forEach((loop, at) => {
    const own = paths[loop.layer] ?? [];
    const outer = loops[loop.parent];
    const above = outer ? tree.path(below(own, paths[outer.layer] ?? []), boxes[loop.parent]) : tree.path(own);
    const name = layers[loop.layer]?.name ?? "";
    boxes[at] = tree.add(`loop${loop.layer}`, (key) => ({
      key, kind: "body", title: loopTitle(name, loop), ref: { kind: "layer", name }, kernel: -1, layer: loop.layer,
      number: -1, parent: above,
    }));
  });
  return (layer) => {
    const own = paths[layer] ?? [];
    const at = innermost.get(layer);
    const loop = at === undefined ? undefined : loops[at];
    if (!loop || at === undefined) return tree.path(own);
    return layer === loop.layer ? (boxes[at] ?? -1) : tree.path(below(own, paths[loop.layer] ?? []), boxes[at]);
  };
}

/** A path without its common prefix with another. */
function below(path: readonly string[], other: readonly string[]): readonly string[] {
  let shared = 0;
  while (shared < path.length && path[shared] === other[shared]) shared++;
  return path.slice(shared);
}
