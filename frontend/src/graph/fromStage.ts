// The graph of a stage: operators and what they read. Tuples, calls of fused functions and their
// parameters are looked through, so that an edge leads from the operator that computes a value to the
// operators that use it; fused functions are hulls around their operators.

import { names } from "../parts/names";
import type { Ref } from "../refs";
import type { Links, Nodes, Overview, Stage } from "../wire";
import { ClusterTree, tidy } from "./clusters";
import { Edges, type Graph, type GraphNode } from "./graph";
import { layerPaths, mainPath } from "./groups";
import { loopTitle } from "./loops";

/** `first` is the import's stage, whose parameters may name groups of layers. */
export function stageGraph(stage: Stage, overview: Overview, links: Links | null, first: Nodes | null): Graph {
  return new Reading(stage, overview, links, first).graph();
}

class Reading {
  private readonly nodes: Nodes;
  private readonly place: ReadonlyMap<number, number>;
  /** Places of functions' parameters and results, by the function's number. */
  private readonly parameters = new Map<number, number[]>();
  private readonly results = new Map<number, number>();
  /** The places of nodes that hold a function, by its number. */
  private readonly holders = new Map<number, number[]>();
  private readonly made = new Map<number, number>();
  private readonly bodies = new Map<number, number>();
  private readonly lines: readonly string[];
  private readonly kernelOfCall: ReadonlyMap<number, number>;

  constructor(
    private readonly stage: Stage,
    private readonly overview: Overview,
    private readonly links: Links | null,
    private readonly first: Nodes | null,
  ) {
    this.nodes = stage.nodes;
    this.lines = stage.text.split("\n");
    this.place = new Map(stage.nodes.number.map((number, at) => [number, at]));
    this.kernelOfCall = new Map(overview.kernels.map((kernel) => [kernel.call, kernel.index]));
    const { kind, parent, functions } = this.nodes;
    kind.forEach((what, at) => {
      const inside = parent[at] ?? -1;
      if (what === "Var") list(this.parameters, inside).push(at);
      else if (what !== "Function" && what !== "Constant") this.results.set(inside, at);
      for (const held of functions[at] ?? []) list(this.holders, held).push(at);
    });
  }

  graph(): Graph {
    const { kind, inputs } = this.nodes;
    const drawn: GraphNode[] = [];
    const at: number[] = [];
    const tree = new ClusterTree();
    const paths = layerPaths(this.overview.layers, this.first);
    const origins = originStages(this.links, this.stage.index);
    kind.forEach((_, place) => {
      const role = this.role(place);
      if (!role) return;
      this.made.set(place, drawn.length);
      at.push(place);
      drawn.push(this.node(place, role, origins, this.cluster(place, tree, paths)));
    });
    const outputs = this.outputs();
    const edges = new Edges(drawn.length + outputs.length);
    at.forEach((place, target) => {
      // A branch or loop reads its condition; its functions read the rest, and it passes on their results.
      const functions = this.nodes.functions[place] ?? [];
      const handed = Math.max(0, ...functions.map((held) => this.parameters.get(held)?.length ?? 0));
      const own = inputs[place] ?? [];
      for (const input of own.slice(0, own.length - handed)) for (const source of this.sources(input)) edges.add(source, target);
      for (const held of functions) {
        const result = this.results.get(held);
        if (result !== undefined) for (const source of this.from(result)) edges.add(source, target);
      }
    });
    outputs.forEach((output, n) => {
      for (const source of output.sources) edges.add(source, drawn.length + n);
    });
    const nodes = [...drawn, ...outputs.map((output) => output.node)];
    this.constants(nodes, edges.pairs);
    return { nodes, edges: edges.pairs, clusters: tidy(nodes, edges.pairs, tree.clusters) };
  }

  /** A node's kind in the drawing, "" for nodes that are not drawn. */
  private role(place: number): GraphNode["role"] | "" {
    const kind = this.nodes.kind[place];
    if (kind === "Constant") return "constant";
    if (kind === "Var") return (this.nodes.parent[place] ?? -1) < 0 ? "input" : "";
    if (kind === "Function" || kind === "Tuple" || kind === "TupleGetItem") return "";
    return this.opened(place) === null ? "op" : "";
  }

  /** The function that a call applies, if it has operators to show; null for an operator. */
  private opened(place: number): number | null {
    const held = this.nodes.functions[place] ?? [];
    const called = held[0];
    if (this.nodes.kind[place] !== "Call" || held.length !== 1 || called === undefined) return null;
    const result = this.results.get(called);
    return result === undefined ? null : called;
  }

  private node(place: number, role: GraphNode["role"], origins: ReadonlyMap<number, number>, cluster: number): GraphNode {
    const { number, title, type, layers, marks, parent } = this.nodes;
    const mine = number[place] ?? -1;
    const name = title[place] ?? "";
    return {
      key: `n${mine}`,
      role,
      ref: { kind: "node", stage: this.stage.index, number: mine },
      number: mine,
      title: role === "constant" ? name.replace(/^constant ?/, "") || "constant" : name,
      type: type[place] ?? "",
      detail: role === "op" ? attributes(this.lines[(this.nodes.line[place] ?? 0) - 1] ?? "") : "",
      layers: layers[place] ?? [],
      marks: marks[place] ?? [],
      kernel: this.kernelOf(parent[place] ?? -1),
      by: role === "op" ? this.madeBy(place, origins) : "",
      cluster,
    };
  }

  private madeBy(place: number, origins: ReadonlyMap<number, number>): string {
    const origin = (at: number) => {
      const number = this.nodes.number[at] ?? -1;
      return origins.get(number) ?? this.links?.born[number] ?? 0;
    };
    let stage = origin(place);
    // The value of a call is its function's result.
    const owner = this.nodes.parent[place] ?? -1;
    if (this.results.get(owner) === place) for (const holder of this.holders.get(owner) ?? []) stage = Math.min(stage, origin(holder));
    return stage ? (this.overview.stages[stage]?.name ?? "") : "";
  }

  private kernelOf(owner: number): number {
    for (const holder of this.holders.get(owner) ?? []) {
      const found = this.kernelOfCall.get(this.nodes.number[holder] ?? -1);
      if (found !== undefined) return found;
    }
    return -1;
  }

  /** The cluster that a node stands in: the function's, in the group and layer it belongs to. */
  private cluster(place: number, tree: ClusterTree, paths: readonly (readonly string[])[]): number {
    const owner = this.nodes.parent[place] ?? -1;
    const layers = this.nodes.layers[place] ?? [];
    // Operators of a function are not grouped by layers: colors distinguish those.
    if (owner >= 0) return this.bodyCluster(owner, tree, paths);
    if (this.nodes.kind[place] === "Var" || !layers.length) return -1;
    const group = tree.path(mainPath(layers, paths));
    const held = this.nodes.functions[place] ?? [];
    if (held.length) return this.holderCluster(place, tree, group);
    const layer = layers[0] as number;
    return layers.length === 1 ? this.layerCluster(layer, group, tree) : group;
  }

  private layerCluster(layer: number, parent: number, tree: ClusterTree): number {
    const known = this.overview.layers[layer];
    return tree.add(`l${layer}`, (key) => ({
      key, kind: "layer", title: known?.name ?? "", ref: known ? { kind: "layer", name: known.name } : null,
      kernel: -1, layer, number: -1, parent,
    }));
  }

  /** A branch or a loop with its functions. */
  private holderCluster(place: number, tree: ClusterTree, parent: number): number {
    const number = this.nodes.number[place] ?? -1;
    const layers = this.nodes.layers[place] ?? [];
    const name = names(layers.map((layer) => this.overview.layers[layer]?.name ?? ""));
    return tree.add(`h${number}`, (key) => ({
      key, kind: "body", title: `${this.nodes.title[place] ?? ""} ${this.turning(place) || name}`.trim(),
      ref: { kind: "node", stage: this.stage.index, number }, kernel: -1, layer: layers[0] ?? -1, number, parent,
    }));
  }

  /** A loop's layer with its number of iterations, "" if it is not a loop. */
  private turning(place: number): string {
    const layers = this.nodes.layers[place] ?? [];
    const loop = this.nodes.kind[place] === "While" && this.overview.loops.find((one) => layers.includes(one.layer));
    return loop ? loopTitle(this.overview.layers[loop.layer]?.name ?? "", loop) : "";
  }

  private bodyCluster(owner: number, tree: ClusterTree, paths: readonly (readonly string[])[]): number {
    let found = this.bodies.get(owner);
    if (found === undefined) this.bodies.set(owner, (found = this.makeBody(owner, tree, paths)));
    return found;
  }

  private makeBody(owner: number, tree: ClusterTree, paths: readonly (readonly string[])[]): number {
    const holder = this.holders.get(owner)?.[0];
    if (holder === undefined) return -1;
    const { number, layers, parent, title, functions } = this.nodes;
    const mine = layers[holder] ?? [];
    const outside = parent[holder] ?? -1;
    const above = outside >= 0 ? this.bodyCluster(outside, tree, paths) : tree.path(mainPath(mine, paths));
    const call = number[holder] ?? -1;
    if (this.nodes.kind[holder] === "Call") {
      const kernel = this.kernelOfCall.get(call) ?? -1;
      const region = this.overview.regions.find((one) => one.call === call);
      return tree.add(`k${call}`, (key) => ({
        key, kind: "kernel", title: region ? `${region.name} on ${region.backend}` : (title[holder] ?? ""),
        ref: this.refOf(call, kernel),
        kernel, layer: mine.length === 1 ? (mine[0] as number) : -1, number: call, parent: above,
      }));
    }
    const whole = this.holderCluster(holder, tree, above);
    const names = this.nodes.kind[holder] === "If" ? ["then", "else"] : ["condition", "body"];
    const nth = (functions[holder] ?? []).indexOf(owner);
    return tree.add(`f${owner}`, (key) => ({
      key, kind: "body", title: names[nth] ?? "body", ref: null, kernel: -1, layer: -1, number: owner, parent: whole,
    }));
  }

  private refOf(call: number, kernel: number): Ref {
    const region = this.overview.regions.find((one) => one.call === call);
    if (region) return { kind: "region", region: region.index };
    return kernel >= 0 ? { kind: "kernel", kernel } : { kind: "node", stage: this.stage.index, number: call };
  }

  /** The drawn nodes that compute the value of a node, by its number. */
  private sources(number: number): number[] {
    const place = this.place.get(number);
    return place === undefined ? [] : this.from(place);
  }

  private from(place: number, item = -1, depth = 0): number[] {
    const drawn = this.made.get(place);
    if (drawn !== undefined) return [drawn];
    if (depth > 200) return [];
    const { kind, inputs, parent } = this.nodes;
    const reads = inputs[place] ?? [];
    const follow = (number: number, which: number) => {
      const next = this.place.get(number);
      return next === undefined ? [] : this.from(next, which, depth + 1);
    };
    switch (kind[place]) {
      case "TupleGetItem": {
        const index = /\[(\d+)\](?:\s*\/\/|\s*$)/.exec(this.lines[(this.nodes.line[place] ?? 0) - 1] ?? "");
        return reads.flatMap((number) => follow(number, index ? Number(index[1]) : -1));
      }
      case "Tuple": {
        const one = item >= 0 ? reads[item] : undefined;
        return one === undefined ? reads.flatMap((number) => follow(number, -1)) : follow(one, -1);
      }
      case "Call": {
        const result = this.results.get(this.opened(place) ?? -2);
        return result === undefined ? [] : this.from(result, item, depth + 1);
      }
      case "Var": {
        const owner = parent[place] ?? -1;
        const parameters = this.parameters.get(owner) ?? [];
        const nth = parameters.indexOf(place);
        return (this.holders.get(owner) ?? []).flatMap((holder) => {
          const given = inputs[holder] ?? [];
          // The condition of a branch precedes the operands of its functions.
          const number = given[nth + given.length - parameters.length];
          return number === undefined ? [] : follow(number, -1);
        });
      }
      default:
        return [];
    }
  }

  /** The model's outputs by name. */
  private outputs(): { node: GraphNode; sources: number[] }[] {
    const result = this.results.get(-1);
    if (result === undefined) return [];
    const tuple = this.nodes.kind[result] === "Tuple";
    const numbers = tuple ? (this.nodes.inputs[result] ?? []) : [this.nodes.number[result] ?? -1];
    return numbers.map((number, n) => ({
      node: {
        key: `o${n}`, role: "output", ref: null, number: -1, title: this.overview.outputs[n] ?? `output ${n}`,
        type: this.nodes.type[this.place.get(number) ?? -1] ?? "", detail: "", layers: [], marks: [], kernel: -1,
        by: "", cluster: -1,
      },
      sources: this.sources(number),
    }));
  }

  /** A constant with a single reader stands in the reader's cluster. */
  private constants(nodes: readonly GraphNode[], edges: readonly number[]): void {
    const reader = new Map<number, number>();
    for (let at = 0; at < edges.length; at += 2) {
      const source = edges[at] as number;
      if (nodes[source]?.role !== "constant") continue;
      reader.set(source, reader.has(source) ? -1 : (edges[at + 1] as number));
    }
    for (const [source, target] of reader) {
      const node = nodes[source];
      if (node) node.cluster = target < 0 ? -1 : (nodes[target]?.cluster ?? -1);
    }
  }
}

/** An operator's attributes as text: `strides=[2, 2], layout="NCHW"`. */
export function attributes(line: string): string {
  const open = line.indexOf("(", line.indexOf(" = "));
  if (open < 0) return "";
  let depth = 0;
  let quoted = false;
  const parts: string[] = [];
  let part = "";
  for (let at = open + 1; at < line.length; at++) {
    const c = line[at] as string;
    if (quoted) {
      if (c === "\\") part += line[at++];
      else if (c === '"') quoted = false;
    } else if (c === '"') quoted = true;
    else if (c === "[" || c === "(" || c === "{") depth++;
    else if (c === ")" && depth === 0) break;
    else if (c === "]" || c === ")" || c === "}") depth--;
    else if (c === "," && depth === 0) {
      parts.push(part.trim());
      part = "";
      continue;
    }
    part += line[at] ?? "";
  }
  parts.push(part.trim());
  return parts.filter((text) => text && !text.startsWith("%")).join(", ");
}

/** For nodes of a stage, the stage that made their computation; a mere rewrite does not count. */
export function originStages(links: Links | null, stage: number): Map<number, number> {
  const found = new Map<number, number>();
  if (!links) return found;
  for (let at = 1; at <= stage; at++) {
    const step = links.stages[at];
    step?.new.forEach((number, n) => {
      if (links.born[number] !== at) return;
      const old = step.old[n] as number;
      const before = found.get(old) ?? 0;
      if (step.same[n]) found.set(number, Math.min(found.get(number) ?? before, before));
      else if (!found.has(number)) found.set(number, at);
    });
  }
  return found;
}

function list<K>(map: Map<K, number[]>, key: K): number[] {
  let found = map.get(key);
  if (!found) map.set(key, (found = []));
  return found;
}
