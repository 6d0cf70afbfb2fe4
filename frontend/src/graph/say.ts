// Descriptions of things in the graph, for tooltips and screen readers.

import { names } from "../parts/names";
import type { Ref } from "../refs";
import type { Overview, RegionInfo } from "../wire";
import { betweenRemarks } from "./remarks";
import type { Hit, Scene } from "./scene";

export interface Said {
  readonly title: string;
  readonly lines: readonly string[];
  /** Why things were not fused: shown with its own mark. */
  readonly remarks: readonly string[];
}

type Remarks = ReadonlyMap<number, readonly string[]>;

export function sayHit(scene: Scene, hit: Hit, overview: Overview, remarks: Remarks): Said | null {
  if (hit.kind === "item") return sayItem(scene, hit.at, overview, remarks);
  if (hit.kind === "edge") return sayEdge(scene, hit.at, remarks);
  return sayCluster(scene, hit.at, overview, remarks);
}

export function sayItem(scene: Scene, at: number, overview: Overview, remarks: Remarks): Said | null {
  const item = scene.view.items[at];
  if (item?.cluster) {
    const { cluster, operators } = item;
    const kernel = overview.kernels[cluster.kernel];
    const region = regionOf(cluster.ref, overview);
    return {
      title: cluster.title,
      lines: [region ? `region on ${region.backend}` : kernel ? `kernel ${kernel.index}, ${kernel.shape}` : "", count(operators, "operator"), "click to open"].filter(Boolean),
      remarks: [],
    };
  }
  const node = item?.node;
  if (!node) return null;
  const kernel = overview.kernels[node.kernel];
  const around = overview.regions.find((region) => region.numbers.includes(node.number));
  const layers = node.layers.map((layer) => overview.layers[layer]).filter((layer) => layer !== undefined);
  const results = node.marks.map((layer) => overview.layers[layer]?.name ?? "");
  return {
    title: node.title,
    lines: [
      node.type,
      node.detail,
      layers.length ? `${layers.length > 1 ? "layers" : "layer"} ${some(layers.map((layer) => `${layer.name}${layer.op ? ` (${layer.op})` : ""}`))}` : "",
      results.length ? `◆ gives the result of ${some(results)}` : "",
      node.by ? `made by ${node.by}` : "",
      kernel ? `in kernel ${kernel.index} ${kernel.name}` : "",
      around ? `in region ${around.index} ${around.name} on ${around.backend}` : "",
    ].filter(Boolean),
    remarks: remarks.get(node.number) ?? [],
  };
}

function sayEdge(scene: Scene, edge: number, remarks: Remarks): Said | null {
  const { items, edges, graph } = scene.view;
  const source = items[edges[2 * edge] as number];
  const target = items[edges[2 * edge + 1] as number];
  if (!source || !target) return null;
  const apart = new Set<string>();
  // Between collapsed clusters an edge stands for several.
  for (let at = 0; at < graph.edges.length && apart.size < 6; at += 2) {
    const from = graph.edges[at] as number;
    const to = graph.edges[at + 1] as number;
    if (!source.holds.includes(from) || !target.holds.includes(to)) continue;
    for (const text of betweenRemarks(graph, remarks, from, to)) apart.add(text);
  }
  const name = (item: typeof source) => item.node?.title ?? item.cluster?.title ?? "";
  return { title: `${name(source)} → ${name(target)}`, lines: source.node?.type ? [source.node.type] : [], remarks: [...apart] };
}

function sayCluster(scene: Scene, at: number, overview: Overview, remarks: Remarks): Said | null {
  const cluster = scene.view.clusters[at];
  if (!cluster) return null;
  const { graph } = scene.view;
  const kernel = overview.kernels[cluster.kernel];
  const own = kernel ? graph.nodes.filter((node) => node.kernel === cluster.kernel) : [];
  const texts = own.flatMap((node) => (remarks.get(node.number) ?? []).filter((text) => text.includes("not fused")));
  const region = regionOf(cluster.ref, overview);
  const layers = (kernel ?? region)?.layers.map((layer) => overview.layers[layer]?.name ?? "") ?? [];
  return {
    title: kernel ? `kernel ${kernel.index} ${kernel.name}` : cluster.title,
    lines: [
      region ? `region on the backend ${region.backend}` : "",
      region ? region.ops.join(" · ") : "",
      kernel?.shape ?? "",
      kernel ? kernel.ops.join(" · ") : "",
      layers.length ? `layers ${some(layers)}` : "",
      cluster.kind === "layer" ? "a layer's operators" : cluster.kind === "group" ? "layers whose names begin alike" : "",
    ].filter(Boolean),
    remarks: [...new Set(texts)].slice(0, 6),
  };
}

function regionOf(ref: Ref | null, overview: Overview): RegionInfo | undefined {
  return ref?.kind === "region" ? overview.regions[ref.region] : undefined;
}

/** In one sentence, for screen readers. */
export function sentence(said: Said | null, place: number, of: number): string {
  if (!said) return "";
  return `${said.title}, ${[...said.lines, ...said.remarks].join(", ")}, ${place} of ${of}`;
}

function some(all: readonly string[]): string {
  return all.length > 6 ? `${names(all.slice(0, 6))} and ${all.length - 6} more` : names(all);
}

function count(n: number, what: string): string {
  return `${n} ${what}${n === 1 ? "" : "s"}`;
}
