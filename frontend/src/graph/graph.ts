// The contents of a graph pane before collapsing and layout: nodes, edges, clusters.

import type { Ref } from "../refs";

export type Role = "op" | "constant" | "input" | "output";

/** `+` for a node that the stage added, `~` for one that it changed. */
export type Change = "" | "+" | "~";

export interface GraphNode {
  /** Stable over stages' graphs of a build, as far as the node is. */
  readonly key: string;
  readonly role: Role;
  readonly ref: Ref | null;
  /** The node's number in the trace, -1 for layers, inputs and outputs of the model. */
  readonly number: number;
  readonly title: string;
  readonly type: string;
  readonly detail: string;
  readonly layers: readonly number[];
  /** Layers whose result this node is. */
  readonly marks: readonly number[];
  readonly kernel: number;
  /** The pass that made this node's computation, "" if it comes from the model. */
  readonly by: string;
  /** The innermost cluster, -1 for none. */
  cluster: number;
}

export type ClusterKind = "group" | "layer" | "kernel" | "body";

export interface Cluster {
  readonly key: string;
  readonly kind: ClusterKind;
  readonly title: string;
  readonly ref: Ref | null;
  readonly kernel: number;
  /** The layer that colors it, -1 if it contains several. */
  readonly layer: number;
  /** For kernels the number of the call's node, else -1. */
  readonly number: number;
  parent: number;
}

export interface Graph {
  readonly nodes: readonly GraphNode[];
  /** Clusters stand after their parents. */
  readonly clusters: readonly Cluster[];
  /** Pairs of places in `nodes`, source and target alternating, without duplicates. */
  readonly edges: readonly number[];
}

/** Collects edges without duplicates. */
export class Edges {
  readonly pairs: number[] = [];
  private readonly seen = new Set<number>();

  constructor(private readonly count: number) {}

  add(source: number, target: number): void {
    if (source === target || source < 0 || target < 0) return;
    const key = source * this.count + target;
    if (this.seen.has(key)) return;
    this.seen.add(key);
    this.pairs.push(source, target);
  }
}

/** For every place in a list of pairs the other ends, in one direction. */
export function neighbors(count: number, pairs: readonly number[], from: 0 | 1): number[][] {
  const found: number[][] = Array.from({ length: count }, () => []);
  for (let at = 0; at < pairs.length; at += 2) {
    found[pairs[at + from] as number]?.push(pairs[at + 1 - from] as number);
  }
  return found;
}
