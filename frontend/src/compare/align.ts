// Which layers of two builds are each other's counterparts, and what that says of everything else:
// a node, a kernel or a line of one build stands for its layers' counterparts in the other.

import type { Ref } from "../refs";
import type { CodeLines, Thread } from "../thread";
import type { LayerChange, Overview } from "../wire";

type Layers = Overview["layers"];

export class Alignment {
  private readonly toB = new Map<number, number>();
  private readonly toA = new Map<number, number>();

  /** `pairs` are places of layers in A and in B; layers in only one build are left out. */
  constructor(pairs: Iterable<readonly [number, number]>) {
    for (const [a, b] of pairs) {
      this.toB.set(a, b);
      this.toA.set(b, a);
    }
  }

  /** The alignment of a computed difference. */
  static of(changes: readonly LayerChange[]): Alignment {
    return new Alignment(changes.filter((c) => c.a >= 0 && c.b >= 0).map((c) => [c.a, c.b] as const));
  }

  /** By equal names: good enough until a difference has been computed. */
  static named(a: Layers, b: Layers): Alignment {
    const places = new Map(b.map((layer, n) => [layer.name, n]));
    const pairs: [number, number][] = [];
    a.forEach((layer, n) => {
      const other = places.get(layer.name);
      if (other !== undefined) pairs.push([n, other]);
    });
    return new Alignment(pairs);
  }

  /** The counterpart of a layer; `back` goes from B to A. */
  counterpart(layer: number, back = false): number | null {
    return (back ? this.toA : this.toB).get(layer) ?? null;
  }

  /** The other way around. */
  get turned(): Alignment {
    return new Alignment(this.toA);
  }
}

/** Returns the counterparts of a thing's layers in the other build. `code` has the lines of the first. */
export function counterparts(ref: Ref, from: Thread, code: CodeLines, alignment: Alignment, to: Layers): Ref[] {
  const found: Ref[] = [];
  for (const layer of from.reach(ref, code).layers) {
    const other = alignment.counterpart(layer);
    const name = other === null ? undefined : to[other]?.name;
    if (name !== undefined) found.push({ kind: "layer", name });
  }
  return found;
}
