// Puts nodes into clusters, such that a graph with any of them collapsed has no
// cycles: a path that leaves a cluster and returns splits it in two.

import { neighbors, type Cluster, type GraphNode } from "./graph";

/** A tree of clusters while it grows. */
export class ClusterTree {
  readonly clusters: Cluster[] = [];
  private readonly places = new Map<string, number>();

  /** Returns the place of the cluster with that key, and creates it if necessary. */
  add(key: string, make: (key: string) => Cluster): number {
    let place = this.places.get(key);
    if (place === undefined) {
      place = this.clusters.length;
      this.places.set(key, place);
      this.clusters.push(make(key));
    }
    return place;
  }

  /** The clusters of a path of names, below `parent`; returns the innermost. */
  path(path: readonly string[], parent = -1): number {
    let at = parent;
    let key = parent < 0 ? "g" : (this.clusters[parent]?.key ?? "g");
    for (const part of path) {
      const above = at;
      key += `/${part}`;
      at = this.add(key, (k) => ({
        key: k, kind: "group", title: part, ref: null, kernel: -1, layer: -1, number: -1, parent: above,
      }));
    }
    return at;
  }
}

/** Splits clusters that are not convex, and drops those with one member; nodes' clusters change. */
export function tidy(nodes: readonly GraphNode[], edges: readonly number[], clusters: Cluster[]): Cluster[] {
  return compact(nodes, convex(nodes, edges, clusters));
}

/** Splits every cluster that a path leaves and reenters; clusters that stay cyclic are dissolved. */
function convex(nodes: readonly GraphNode[], edges: readonly number[], clusters: Cluster[]): Cluster[] {
  const order = topological(nodes.length, edges);
  const inputs = neighbors(nodes.length, edges, 1);
  for (let round = 0; round < 4; round++) {
    const bad = tangled(nodes, edges, clusters);
    if (!bad.size) return clusters;
    for (const cluster of bad) {
      if (round > 1) dissolve(nodes, clusters, cluster);
      else split(nodes, clusters, cluster, order, inputs);
    }
  }
  for (const cluster of tangled(nodes, edges, clusters)) dissolve(nodes, clusters, cluster);
  return clusters;
}

/** The clusters on cycles between siblings. */
function tangled(nodes: readonly GraphNode[], edges: readonly number[], clusters: readonly Cluster[]): Set<number> {
  const depth = clusters.map(() => 0);
  clusters.forEach((cluster, at) => (depth[at] = cluster.parent < 0 ? 1 : (depth[cluster.parent] ?? 0) + 1));
  // Nodes are numbered first, then clusters. An edge connects two children of their common parent.
  const of = (thing: number) =>
    thing < nodes.length ? (nodes[thing]?.cluster ?? -1) : (clusters[thing - nodes.length]?.parent ?? -1);
  const deep = (thing: number) => {
    const holder = of(thing);
    return holder < 0 ? 0 : (depth[holder] ?? 0);
  };
  const lifted: number[] = [];
  for (let at = 0; at < edges.length; at += 2) {
    let a = edges[at] as number;
    let b = edges[at + 1] as number;
    while (of(a) !== of(b)) {
      if (deep(a) >= deep(b)) a = of(a) + nodes.length;
      else b = of(b) + nodes.length;
    }
    if (a !== b) lifted.push(a, b);
  }
  const count = nodes.length + clusters.length;
  const placed = new Set(topological(count, lifted, true));
  const back = new Set(topological(count, reversed(lifted), true));
  const bad = new Set<number>();
  clusters.forEach((_, at) => {
    const thing = at + nodes.length;
    if (!placed.has(thing) && !back.has(thing)) bad.add(at);
  });
  return bad;
}

function reversed(edges: readonly number[]): number[] {
  const found: number[] = [];
  for (let at = 0; at < edges.length; at += 2) found.push(edges[at + 1] as number, edges[at] as number);
  return found;
}

/** Splits a cluster by how often a path has left it before. */
function split(
  nodes: readonly GraphNode[], clusters: Cluster[], cluster: number,
  order: readonly number[], inputs: readonly (readonly number[])[],
): void {
  const inside = within(clusters, cluster);
  const part = new Int32Array(nodes.length);
  let most = 0;
  for (const node of order) {
    const mine = inside(nodes[node]?.cluster ?? -1);
    let highest = 0;
    for (const input of inputs[node] ?? []) {
      const left = !mine && inside(nodes[input]?.cluster ?? -1);
      highest = Math.max(highest, (part[input] ?? 0) + (left ? 1 : 0));
    }
    part[node] = highest;
    if (mine) most = Math.max(most, highest);
  }
  if (!most) return;
  if (most > 50) return dissolve(nodes, clusters, cluster);
  const copies = new Map<string, number>();
  const copy = (from: number, to: number): number => {
    const known = copies.get(`${from}/${to}`);
    if (known !== undefined) return known;
    const old = clusters[from] as Cluster;
    const parent = from === cluster ? old.parent : copy(old.parent, to);
    const made = clusters.length;
    clusters.push({ ...old, key: `${old.key}#${to}`, parent });
    copies.set(`${from}/${to}`, made);
    return made;
  };
  nodes.forEach((node, at) => {
    const to = part[at] ?? 0;
    if (to && inside(node.cluster)) node.cluster = copy(node.cluster, to);
  });
}

function dissolve(nodes: readonly GraphNode[], clusters: Cluster[], cluster: number): void {
  const parent = clusters[cluster]?.parent ?? -1;
  for (const node of nodes) if (node.cluster === cluster) node.cluster = parent;
  for (const other of clusters) if (other.parent === cluster) other.parent = parent;
}

/** Whether a cluster equals another, or is inside it. */
function within(clusters: readonly Cluster[], cluster: number): (at: number) => boolean {
  const known = new Map<number, boolean>([[-1, false], [cluster, true]]);
  const inside = (at: number): boolean => {
    let found = known.get(at);
    if (found === undefined) known.set(at, (found = inside(clusters[at]?.parent ?? -1)));
    return found;
  };
  return inside;
}

/** Leaves out clusters that hold nothing, or one thing, unless they are kernels or bodies; joins the
 * names of groups that hold only a group. Parents come first in the result.
 */
function compact(nodes: readonly GraphNode[], clusters: readonly Cluster[]): Cluster[] {
  const held = clusters.map(() => 0);
  const groups: number[][] = clusters.map(() => []);
  for (const node of nodes) if (node.cluster >= 0 && node.role !== "constant") held[node.cluster] = (held[node.cluster] ?? 0) + 1;
  const byDepth = sorted(clusters);
  for (const at of [...byDepth].reverse()) {
    const parent = clusters[at]?.parent ?? -1;
    const full = (held[at] ?? 0) + (groups[at]?.length ?? 0);
    if (full && parent >= 0) groups[parent]?.push(at);
  }
  const kept: Cluster[] = [];
  const place = new Map<number, number>([[-1, -1]]);
  const prefix = new Map<number, string>();
  for (const at of byDepth) {
    const cluster = clusters[at] as Cluster;
    const own = held[at] ?? 0;
    const inner = groups[at]?.length ?? 0;
    const solid = cluster.kind === "kernel" || cluster.kind === "body";
    const title = cluster.kind === "group" ? (prefix.get(cluster.parent) ?? "") + cluster.title : cluster.title;
    const above = place.get(cluster.parent) ?? -1;
    if (own + inner > 1 || (solid && own + inner)) {
      place.set(at, kept.length);
      kept.push({ ...cluster, title, parent: above });
    } else {
      place.set(at, above);
      if (cluster.kind === "group" && inner === 1) prefix.set(at, `${title}.`);
    }
  }
  for (const node of nodes) node.cluster = place.get(node.cluster) ?? -1;
  return kept;
}

/** Places of clusters, those that hold others before these. */
function sorted(clusters: readonly Cluster[]): number[] {
  const depth = new Map<number, number>([[-1, 0]]);
  const deep = (at: number): number => {
    let found = depth.get(at);
    if (found === undefined) depth.set(at, (found = deep(clusters[at]?.parent ?? -1) + 1));
    return found;
  };
  return clusters.map((_, at) => at).sort((a, b) => deep(a) - deep(b) || a - b);
}

/** A topological order, sources first; nodes on cycles and after them are left out
 * (`strict`) or come last.
 */
export function topological(count: number, edges: readonly number[], strict = false): number[] {
  const next = neighbors(count, edges, 0);
  const waiting = new Int32Array(count);
  for (let at = 1; at < edges.length; at += 2) waiting[edges[at] as number] = (waiting[edges[at] as number] ?? 0) + 1;
  const order: number[] = [];
  for (let at = 0; at < count; at++) if (!waiting[at]) order.push(at);
  for (let at = 0; at < order.length; at++) {
    for (const target of next[order[at] as number] ?? []) {
      waiting[target] = (waiting[target] ?? 0) - 1;
      if (!waiting[target]) order.push(target);
    }
  }
  if (!strict && order.length < count) {
    for (let at = 0; at < count; at++) if ((waiting[at] ?? 0) > 0) order.push(at);
  }
  return order;
}
