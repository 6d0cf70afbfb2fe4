// The visible items of a graph: collapsed clusters are one item, constants may be left out.

import type { Cluster, Graph, GraphNode } from "./graph";
import { Edges } from "./graph";

/** A box: an operator, or a collapsed cluster with all that it holds. */
export interface Item {
  readonly key: string;
  /** The node, null for a collapsed cluster. */
  readonly node: GraphNode | null;
  readonly cluster: Cluster | null;
  /** Places in the graph of the nodes that it stands for. */
  readonly holds: readonly number[];
  /** How many of these are operators. */
  readonly operators: number;
  /** The place in `View.clusters` of the open cluster it stands in, -1 for none. */
  readonly inside: number;
}

export interface View {
  readonly graph: Graph;
  readonly items: readonly Item[];
  readonly clusters: readonly Cluster[];
  /** For open clusters the place of the one around them. */
  readonly parents: readonly number[];
  /** Pairs of places in `items`. */
  readonly edges: readonly number[];
  /** For nodes of the graph their item, -1 for what is left out. */
  readonly itemOf: Int32Array;
}

export function makeView(graph: Graph, collapsed: ReadonlySet<string>, constants: boolean): View {
  // The outermost collapsed cluster around each, and the places of open ones.
  const shut: number[] = [];
  const opened: number[] = [];
  const clusters: Cluster[] = [];
  const parents: number[] = [];
  graph.clusters.forEach((cluster, at) => {
    const outer = cluster.parent < 0 ? -1 : (shut[cluster.parent] ?? -1);
    shut[at] = outer >= 0 ? outer : collapsed.has(cluster.key) ? at : -1;
    opened[at] = -1;
    if (shut[at] >= 0) return;
    opened[at] = clusters.length;
    clusters.push(cluster);
    parents.push(cluster.parent < 0 ? -1 : (opened[cluster.parent] ?? -1));
  });
  const items: (Item & { operators: number })[] = [];
  const itemOf = new Int32Array(graph.nodes.length).fill(-1);
  const boxes = new Map<number, number[]>();
  const made = new Map<number, number>();
  graph.nodes.forEach((node, at) => {
    const box = node.cluster < 0 ? -1 : (shut[node.cluster] ?? -1);
    if (box < 0) {
      if (node.role === "constant" && !constants) return;
      itemOf[at] = items.length;
      items.push({ key: node.key, node, cluster: null, holds: [at], operators: 1, inside: node.cluster < 0 ? -1 : (opened[node.cluster] ?? -1) });
      return;
    }
    let holds = boxes.get(box);
    if (!holds) {
      const cluster = graph.clusters[box] as Cluster;
      boxes.set(box, (holds = []));
      const inside = cluster.parent < 0 ? -1 : (opened[cluster.parent] ?? -1);
      made.set(box, items.length);
      items.push({ key: cluster.key, node: null, cluster, holds, operators: 0, inside });
    }
    const place = made.get(box) as number;
    itemOf[at] = place;
    holds.push(at);
    if (node.role === "op") (items[place] as { operators: number }).operators++;
  });
  const edges = new Edges(items.length);
  for (let at = 0; at < graph.edges.length; at += 2) {
    edges.add(itemOf[graph.edges[at] as number] ?? -1, itemOf[graph.edges[at + 1] as number] ?? -1);
  }
  return { graph, items, clusters, parents, edges: edges.pairs, itemOf };
}

/** The most boxes shown at first; kernels are opened to show their contents. */
const AT_FIRST = 120;
const WITH_KERNELS = 260;

/** The clusters to collapse at first: levels are opened from the outside while it stays readable. */
export function collapsedAtFirst(graph: Graph): Set<string> {
  const most = graph.clusters.some((cluster) => cluster.kernel >= 0) ? WITH_KERNELS : AT_FIRST;
  const depth: number[] = [];
  let deepest = 0;
  graph.clusters.forEach((cluster, at) => {
    depth[at] = cluster.parent < 0 ? 0 : (depth[cluster.parent] ?? 0) + 1;
    deepest = Math.max(deepest, depth[at]);
  });
  const below = (level: number) => new Set(graph.clusters.filter((_, at) => depth[at] === level).map((c) => c.key));
  let best = below(0);
  for (let level = 1; level <= deepest + 1; level++) {
    const collapsed = below(level);
    if (makeView(graph, collapsed, false).items.length > most) break;
    best = collapsed;
  }
  return best;
}

export function allClusters(graph: Graph): Set<string> {
  return new Set(graph.clusters.map((cluster) => cluster.key));
}
