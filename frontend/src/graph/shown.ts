// Current colors and marks of boxes: computed on changes, not in each frame.

import type { HeatColor } from "../heat";
import type { Reach } from "../thread";
import type { Change } from "./graph";
import { layerRgb, rgb } from "./rgb";
import { onCanvas, type Look } from "./look";
import type { Hit, Scene } from "./scene";

export interface Shown {
  readonly scene: Scene;
  readonly look: Look;
  /** For each item the colors of its layers, and its heat. */
  readonly layers: readonly (readonly number[])[];
  readonly heat: readonly (string | null)[] | null;
  /** 1 for items and clusters that the focus leads to; null without a focus. */
  readonly hits: Uint8Array | null;
  readonly clusterHits: Uint8Array | null;
  readonly changes: readonly Change[] | null;
  /** The item selected by keys, -1 for none, and the thing under the pointer. */
  readonly key: number;
  readonly pointed: Hit | null;
}

/** Layers that a box stands for, the one whose result it is first. */
export function layersOf(scene: Scene): number[][] {
  const { graph, items } = scene.view;
  return items.map(({ node, cluster, holds }) => {
    if (node) return [...new Set([...node.marks, ...node.layers])];
    const found = new Set<number>();
    if (cluster && cluster.layer >= 0) found.add(cluster.layer);
    for (const at of holds) for (const layer of graph.nodes[at]?.layers ?? []) found.add(layer);
    return [...found];
  });
}

export function heatOf(scene: Scene, build: string, heat: HeatColor): (string | null)[] | null {
  let some = false;
  const found = scene.view.items.map(({ node, cluster }) => {
    const ref = node?.ref ?? cluster?.ref;
    const color = ref ? heat({ build, ref }) : null;
    if (color !== null) some = true;
    return color === null ? null : rgb(onCanvas(color));
  });
  return some ? found : null;
}

/** Marks what a reach holds: nodes at a stage, or layers where `stage` is null. */
export function hitsOf(scene: Scene, reach: Reach, stage: number | null): { items: Uint8Array; clusters: Uint8Array } | null {
  const { graph, items, clusters, itemOf } = scene.view;
  const numbers = stage === null ? null : reach.nodes[stage];
  if (stage === null ? !reach.layers.size : !numbers?.size && !reach.kernels.size) return null;
  const found = new Uint8Array(items.length);
  const around = new Uint8Array(clusters.length);
  let any = false;
  graph.nodes.forEach((node, at) => {
    const item = itemOf[at] as number;
    if (item < 0) return;
    const hit = numbers ? numbers.has(node.number) : node.layers.some((layer) => reach.layers.has(layer));
    if (hit && node.role !== "constant") {
      found[item] = 1;
      any = true;
    }
  });
  clusters.forEach((cluster, at) => {
    if (cluster.kernel >= 0 && reach.kernels.has(cluster.kernel)) {
      around[at] = 1;
      any = true;
    }
  });
  return any ? { items: found, clusters: around } : null;
}

/** A color for a box as a whole. */
export function colorOf(shown: Shown, at: number): string {
  // If figures are shown, a box without one has no color that resembles one.
  if (shown.heat) return shown.heat[at] ?? shown.look.dim;
  const layers = shown.layers[at] as readonly number[];
  const item = shown.scene.view.items[at];
  if (!layers.length || (item?.cluster?.kind === "group" && layers.length > 1)) return shown.look.dim;
  return layerRgb(shown.look.dark, layers[0] as number);
}
