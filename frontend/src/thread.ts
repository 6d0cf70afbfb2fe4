// The thread: the things that a ref leads to, at every level, without the server. The rules are those of
// clew.trace.trace.Trace.forward and backward; tests compare the two.

import type { KernelInfo, Links, Overview, StageInfo } from "./wire";
import type { Ref } from "./refs";

/** Positions of operators in a kernel; null stands for the kernel as a whole. */
export type Positions = ReadonlySet<number> | null;

export interface Reach {
  readonly layers: ReadonlySet<number>;
  /** Nodes by stage, one set for every stage. */
  readonly nodes: readonly ReadonlySet<number>[];
  readonly kernels: ReadonlyMap<number, Positions>;
  /** The line itself, if the ref is a line of code; 0 if its loop is unknown. */
  readonly line: { readonly kernel: number; readonly loop: number; readonly ref: Ref } | null;
}

interface StageIndex {
  readonly forward: ReadonlyMap<number, readonly number[]>;
  readonly backward: ReadonlyMap<number, readonly number[]>;
}

export const NOTHING: Reach = { layers: new Set(), nodes: [], kernels: new Map(), line: null };

/** Returns the union of the things that these lead to. */
export function union(reaches: readonly Reach[]): Reach {
  const [first = NOTHING, ...rest] = reaches;
  if (!rest.length) return first;
  const kernels = new Map<number, Positions>();
  for (const reach of reaches) {
    for (const [kernel, positions] of reach.kernels) {
      const known = kernels.get(kernel);
      kernels.set(kernel, known === null || !positions ? null : new Set([...(known ?? []), ...positions]));
    }
  }
  return {
    layers: new Set(reaches.flatMap((reach) => [...reach.layers])),
    nodes: first.nodes.map((_, stage) => new Set(reaches.flatMap((reach) => [...(reach.nodes[stage] ?? EMPTY)]))),
    kernels,
    line: null,
  };
}

/** A line of code's relation to its kernel's loop nest; needs the kernel's code (see `loopLine`). */
export interface CodeLines {
  loopOf(ref: Ref): number;
  opOf(kernel: number, loop: number): number;
}

export class Thread {
  private readonly stages: readonly StageInfo[];
  private readonly kernels: readonly KernelInfo[];
  private readonly steps = new Map<number, StageIndex>();
  private readonly layerNodes = new Map<number, number[]>();
  private readonly kernelsOf = new Map<number, [number, number][]>();
  private readonly layerIndex = new Map<string, number>();
  private readonly away = new Map<number, (readonly [number, number])[]>();

  constructor(
    readonly overview: Overview,
    readonly links: Links,
  ) {
    this.stages = overview.stages;
    this.kernels = overview.kernels;
    overview.layers.forEach((layer, n) => this.layerIndex.set(layer.name, n));
    links.layers.forEach((layers, number) => {
      if (links.born[number] !== 0) return;
      for (const layer of layers) push(this.layerNodes, layer, number);
    });
    for (const [number, first, end] of links.away) {
      if (number !== undefined) push(this.away, number, [first ?? 0, end ?? 0] as const);
    }
    for (const kernel of this.kernels) {
      kernel.numbers.forEach((number, position) => push(this.kernelsOf, number, [kernel.index, position]));
    }
  }

  get last(): number {
    return this.stages.length - 1;
  }

  layer(name: string): number | undefined {
    return this.layerIndex.get(name);
  }

  /** Returns the things that a ref leads to, in both directions. */
  reach(ref: Ref, code: CodeLines): Reach {
    switch (ref.kind) {
      case "layer": {
        const layer = this.layerIndex.get(ref.name);
        if (layer === undefined) return NOTHING;
        const nodes = this.down(0, this.layerNodes.get(layer) ?? []);
        return { layers: new Set([layer]), nodes, kernels: this.below(nodes[this.last]), line: null };
      }
      case "node":
        return this.through(ref.stage, [ref.number]);
      case "kernel":
        return this.ofKernel(ref.kernel, null, null);
      case "region":
        return this.ofRegion(ref.region);
      case "loop":
      case "llvm":
      case "asm": {
        const loop = code.loopOf(ref);
        const op = loop ? code.opOf(ref.kernel, loop) : -1;
        const line = { kernel: ref.kernel, loop, ref };
        // A line outside the loop nest serves no known operator.
        if (!loop) return this.ofKernel(ref.kernel, EMPTY, line);
        return this.ofKernel(ref.kernel, op < 0 ? null : new Set([op]), line);
      }
      default:
        return NOTHING;
    }
  }

  private through(stage: number, start: readonly number[]): Reach {
    const up = this.up(stage, start);
    const down = this.down(stage, start);
    const nodes = down.map((set, n) => (n < stage ? (up[n] ?? set) : set));
    return { layers: this.layersOf(up, stage), nodes, kernels: this.below(nodes[this.last]), line: null };
  }

  private ofKernel(place: number, positions: Positions, line: Reach["line"]): Reach {
    const kernel = this.kernels[place];
    if (!kernel) return NOTHING;
    const start = kernel.numbers.filter((_, position) => positions?.has(position) ?? true);
    const nodes = this.up(this.last, start);
    return { layers: this.layersOf(nodes, this.last), nodes, kernels: new Map([[place, positions]]), line };
  }

  /** A region has its layers by name; its call was made of what its operators were made of. */
  private ofRegion(place: number): Reach {
    const region = this.overview.regions[place];
    if (!region) return NOTHING;
    const nodes = this.up(this.last, [region.call, ...region.numbers]);
    return { layers: new Set(region.layers), nodes, kernels: new Map(), line: null };
  }

  private layersOf(nodes: readonly ReadonlySet<number>[], stage: number): Set<number> {
    const found = new Set<number>();
    for (let at = 0; at <= stage; at++) {
      for (const number of nodes[at] ?? []) for (const layer of this.links.layers[number] ?? []) found.add(layer);
    }
    return found;
  }

  private below(nodes: ReadonlySet<number> | undefined): Map<number, Positions> {
    const found = new Map<number, Set<number> | null>();
    for (const number of nodes ?? []) {
      for (const [kernel, position] of this.kernelsOf.get(number) ?? []) {
        const known = found.get(kernel);
        if (known) known.add(position);
        else found.set(kernel, new Set([position]));
      }
    }
    for (const kernel of this.kernels) {
      if (nodes?.has(kernel.call) && !found.has(kernel.index)) found.set(kernel.index, null);
    }
    return found;
  }

  private down(stage: number, start: readonly number[]): ReadonlySet<number>[] {
    return this.walk(stage, start, 1);
  }

  private up(stage: number, start: readonly number[]): ReadonlySet<number>[] {
    return this.walk(stage, start, -1);
  }

  private walk(stage: number, start: readonly number[], by: 1 | -1): ReadonlySet<number>[] {
    const reached: ReadonlySet<number>[] = this.stages.map(() => EMPTY);
    let current: ReadonlySet<number> = new Set(start);
    reached[stage] = current;
    for (let at = stage + by; at >= 0 && at <= this.last; at += by) {
      const link = by > 0 ? at : at + 1;
      if (this.stages[link]?.changed) {
        const index = this.step(link);
        const table = by > 0 ? index.forward : index.backward;
        const next = new Set<number>();
        for (const number of current) {
          if (this.alive(number, link - 1) && this.alive(number, link)) next.add(number);
          for (const other of table.get(number) ?? []) next.add(other);
        }
        current = next;
      }
      reached[at] = current;
    }
    return reached;
  }

  private alive(number: number, stage: number): boolean {
    const within = (this.links.born[number] ?? 0) <= stage && stage <= (this.links.last[number] ?? -1);
    return within && !this.away.get(number)?.some(([first, end]) => first <= stage && stage < end);
  }

  /** Prepares the data of the first walk, so that the first hover is fast. */
  warm(): void {
    for (const stage of this.stages) if (stage.changed) this.step(stage.index);
  }

  /** The links into a stage, by node, made when first walked. */
  private step(stage: number): StageIndex {
    let found = this.steps.get(stage);
    if (!found) {
      const forward = new Map<number, number[]>();
      const backward = new Map<number, number[]>();
      const links = this.links.stages[stage];
      links?.old.forEach((old, n) => {
        const fresh = links.new[n];
        if (fresh === undefined) return;
        push(forward, old, fresh);
        push(backward, fresh, old);
      });
      this.steps.set(stage, (found = { forward, backward }));
    }
    return found;
  }
}

const EMPTY: ReadonlySet<number> = new Set();

function push<K, V>(map: Map<K, V[]>, key: K, value: V): void {
  const known = map.get(key);
  if (known) known.push(value);
  else map.set(key, [value]);
}
