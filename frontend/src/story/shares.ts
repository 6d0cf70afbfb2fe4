// Figures beside a story: the share of the time, and the stages with changes.

import { value, type Build } from "../builds";
import { digits, timeText, iterationsText } from "../parts/figures";
import { nodeFigure } from "../plots/nodes";
import type { Ref } from "../refs";
import type { Heat, Overview } from "../wire";
import type { Reach } from "../thread";

export interface Share {
  readonly share: number;
  /** Such as `40 iterations of 31.0 µs`, for a kernel in a loop. */
  readonly iterations: string;
  /** Such as "1.24 ms of 31.8 ms". */
  readonly text: string;
  /** The basis of the figure: measured time, or arithmetic if nothing was measured. */
  readonly basis: "time" | "work";
}

/** The measured time of a build's parts; null if nothing was measured. */
export function timeOf(build: Build): Heat | null {
  const overview = value(build.overview.value);
  return overview?.measured.includes("profile") ? value(build.heat("time").value) : null;
}

/** The share of all kernels' time (or arithmetic) that a layer, kernel or line has. */
export function shareOf(build: Build, ref: Ref): Share | null {
  const overview = value(build.overview.value);
  if (!overview) return null;
  const heat = timeOf(build);
  if (heat) {
    const ns = timeAt(heat, overview, ref);
    const total = heat.total ?? sum(heat.kernels);
    if (ns === null || !total) return null;
    return {
      share: ns / total,
      iterations: ref.kind === "kernel" ? iterationsText(ns, heat.runs[ref.kernel]) : "",
      text: `${timeText(ns)} of ${timeText(total)}`,
      basis: "time",
    };
  }
  if (ref.kind !== "kernel") return null;
  const total = overview.kernels.reduce((s, k) => s + k.flops, 0);
  const kernel = overview.kernels[ref.kernel];
  if (!kernel || !total) return null;
  return { share: kernel.flops / total, iterations: "", text: `${count(kernel.flops)}FLOP of ${count(total)}FLOP`, basis: "work" };
}

function timeAt(heat: Heat, overview: Overview, ref: Ref): number | null {
  switch (ref.kind) {
    case "kernel":
      return heat.kernels[ref.kernel] ?? null;
    case "region":
      return heat.regions[ref.region] ?? null;
    case "layer":
      return heat.layers[overview.layers.findIndex((layer) => layer.name === ref.name)] ?? null;
    case "loop":
      return heat.lines[ref.kernel]?.[ref.line - 1] ?? null;
    case "asm":
      return heat.instructions[ref.kernel]?.[ref.line - 1] ?? null;
    case "node":
      return nodeFigure(overview, heat, ref.stage, ref.number);
    default:
      return null;
  }
}

/** For each stage, whether the nodes that a thing leads to differ from those in the previous stage. */
export function changes(reach: Reach): boolean[] {
  return reach.nodes.map((nodes, stage) => {
    const before = reach.nodes[stage - 1];
    if (!before) return nodes.size > 0;
    return nodes.size !== before.size || [...nodes].some((number) => !before.has(number));
  });
}

export function sum(figures: readonly (number | null)[]): number {
  return figures.reduce((s: number, x) => s + (x ?? 0), 0);
}

/** A count with a prefix of the SI and a space behind it: `3.87 G`. */
export function count(x: number): string {
  for (const [unit, size] of [["T", 1e12], ["G", 1e9], ["M", 1e6], ["k", 1e3]] as const) {
    if (x >= size) return `${digits(x / size)} ${unit}`;
  }
  return `${digits(x)} `;
}

export function percent(share: number): string {
  const p = share * 100;
  if (p > 0 && p < 0.1) return "< 0.1 %";
  return `${p < 9.95 ? p.toFixed(1) : p.toFixed(0)} %`;
}
