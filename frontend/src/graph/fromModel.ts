// The graph of the model as in its file: a node per layer, an edge per value between layers.

import type { ModelEdge, Nodes, Overview } from "../wire";
import { ClusterTree, tidy } from "./clusters";
import { Edges, type Graph, type GraphNode } from "./graph";
import { layerPaths } from "./groups";
import { layerClusters } from "./loops";

/** `first` is the import's stage, whose parameters may name groups of layers, and types of results. */
export function modelGraph(overview: Overview, handed: readonly ModelEdge[], first: Nodes | null): Graph {
  const tree = new ClusterTree();
  const clusterOf = layerClusters(overview, layerPaths(overview.layers, first), tree);
  const types = resultTypes(overview.layers.length, first);
  const nodes: GraphNode[] = overview.layers.map((layer, at) => ({
    ...EMPTY, key: `l${at}`, role: "op", ref: { kind: "layer", name: layer.name }, title: layer.op || layer.name,
    type: types[at] ?? "", detail: layer.name, layers: [at], cluster: clusterOf(at),
  }));
  const ends = new Map<string, number>();
  const end = (role: "input" | "output", name: string) => {
    const key = `${role}:${name}`;
    let place = ends.get(key);
    if (place === undefined) {
      ends.set(key, (place = nodes.length));
      nodes.push({ ...EMPTY, key, role, title: name });
    }
    return place;
  };
  const pairs = handed.map((edge) => [
    edge.source < 0 ? end("input", edge.value) : edge.source,
    edge.target < 0 ? end("output", edge.value) : edge.target,
  ]);
  const edges = new Edges(nodes.length);
  for (const [source, target] of pairs) edges.add(source ?? -1, target ?? -1);
  return { nodes, edges: edges.pairs, clusters: tidy(nodes, edges.pairs, tree.clusters) };
}

const EMPTY = {
  ref: null, number: -1, type: "", detail: "", layers: [], marks: [], kernel: -1, by: "", cluster: -1,
} as const;

function resultTypes(count: number, first: Nodes | null): string[] {
  const found: string[] = Array.from({ length: count }, () => "");
  first?.number.forEach((_, at) => {
    for (const layer of first.marks[at] ?? []) if (!found[layer]) found[layer] = first.type[at] ?? "";
  });
  return found;
}

/** The edges between layers from the import: for builds whose model has no file. */
export function edgesOfImport(overview: Overview, first: Nodes): ModelEdge[] {
  const place = new Map(first.number.map((number, at) => [number, at]));
  const names = first.title;
  const makers = new Map<number, { layer: number; value: string }[]>();
  const of = (number: number): { layer: number; value: string }[] => {
    const at = place.get(number) ?? -1;
    const known = makers.get(number);
    if (known) return known;
    let found: { layer: number; value: string }[] = [];
    const layer = first.layers[at]?.[0];
    if (first.kind[at] === "Var") found = [{ layer: -1, value: names[at] ?? "" }];
    else if (first.kind[at] !== "Constant" && layer !== undefined) found = [{ layer, value: overview.layers[layer]?.name ?? "" }];
    else if (first.kind[at] !== "Constant") found = (first.inputs[at] ?? []).flatMap(of);
    makers.set(number, found);
    return found;
  };
  const edges: ModelEdge[] = [];
  let last = -1;
  first.number.forEach((_, at) => {
    if ((first.parent[at] ?? -1) < 0 && first.kind[at] !== "Function") last = at;
    const target = first.layers[at]?.[0];
    if (target === undefined || first.kind[at] === "Function") return;
    for (const input of first.inputs[at] ?? []) {
      for (const { layer, value } of of(input)) if (layer !== target) edges.push({ source: layer, target, value });
    }
  });
  (first.inputs[last] ?? []).forEach((input, n) => {
    const value = overview.outputs[n] ?? `output ${n}`;
    for (const { layer } of of(input)) edges.push({ source: layer, target: -1, value });
  });
  return edges;
}
