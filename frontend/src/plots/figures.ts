// The figure of each thing of a build, by metric, for colors and tables.

import { value, type Build } from "../builds";
import type { Ref } from "../refs";
import type { Metric } from "../state";
import type { Heat, Overview } from "../wire";
import { nodeFigure } from "./nodes";
import { adds, scaleOf, type Scale } from "./scale";

type Figures = readonly (number | null)[];

/** The range of the figures of layers and kernels. */
export interface Range {
  readonly least: number;
  readonly most: number;
}

export function rangeOf(heats: readonly Heat[]): Range {
  let [least, most] = [Infinity, 0];
  for (const heat of heats) {
    for (const figure of [...heat.layers, ...heat.kernels, ...heat.regions]) {
      if (figure === null || figure <= 0) continue;
      least = Math.min(least, figure);
      most = Math.max(most, figure);
    }
  }
  return { least: Math.min(least, most), most };
}

/** The figures of a build; lines and instructions have a scale of their own in each kernel. */
export class FiguresOf {
  private readonly scales = new Map<Figures, Scale>();

  constructor(
    private readonly build: Build,
    private readonly overview: Overview,
    private readonly metric: Metric,
    readonly heat: Heat,
    private readonly whole: Scale,
  ) {}

  /** From 0 (cold) to 1 (hot); null if the figure is unknown or absent. */
  level(ref: Ref): number | null {
    const figure = this.of(ref);
    if (figure === null || (figure === 0 && adds(this.metric))) return null;
    return this.scaleFor(ref).level(figure);
  }

  of(ref: Ref): number | null {
    switch (ref.kind) {
      case "layer":
        return this.layer(this.build.thread.peek()?.layer(ref.name) ?? -1);
      case "kernel":
        return this.heat.kernels[ref.kernel] ?? null;
      case "region":
        return this.heat.regions[ref.region] ?? null;
      case "loop":
        return this.heat.lines[ref.kernel]?.[ref.line - 1] ?? null;
      case "llvm":
        // Lines of LLVM text share the figure of their line of the loop nest.
        return this.heat.lines[ref.kernel]?.[this.build.loopOf(ref) - 1] ?? null;
      case "asm":
        return this.heat.instructions[ref.kernel]?.[ref.line - 1] ?? null;
      case "source": {
        const layers = value(this.build.model.peek())?.line_layers;
        return this.layer(layers?.[ref.line - 1] ?? -1);
      }
      case "node":
        return nodeFigure(this.overview, this.heat, ref.stage, ref.number);
      default:
        return null;
    }
  }

  private layer(place: number): number | null {
    return this.heat.layers[place] ?? null;
  }

  private scaleFor(ref: Ref): Scale {
    const own = ref.kind === "asm" ? this.heat.instructions[ref.kernel] : ref.kind === "loop" || ref.kind === "llvm" ? this.heat.lines[ref.kernel] : undefined;
    if (!own) return this.whole;
    let scale = this.scales.get(own);
    if (!scale) {
      let most = 0;
      for (const figure of own) most = Math.max(most, figure ?? 0);
      this.scales.set(own, (scale = scaleOf(this.metric, 0, most)));
    }
    return scale;
  }
}
