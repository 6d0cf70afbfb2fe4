// Facts from a recorded schedule: its steps as text, its primitives, its lines' layers.

import { value, type Build } from "../builds";
import { layerColor } from "../colors";
import type { ScheduleStep, ScheduleView } from "../wire";

/** The steps of a schedule's text, without the initial nest and the final simplification. */
export function written(steps: readonly ScheduleStep[]): string[] {
  return steps.filter((step) => step.primitive).map((step) => step.text);
}

/** A primitive's line in `ScheduleView.primitives`: its signature, then its description. */
export function about(view: ScheduleView, primitive: string): { signature: string; text: string } {
  const known = view.primitives[primitive] ?? "";
  const [signature = "", ...text] = known.split("\n");
  return { signature, text: text.join(" ") };
}

function layersOfOp(build: Build, kernel: number, op: number): readonly number[] {
  const overview = value(build.overview.value);
  const links = value(build.links.value);
  const number = overview?.kernels[kernel]?.numbers[op];
  return (number === undefined ? undefined : links?.layers[number]) ?? [];
}

const MOST_STRIPES = 3;

/** The colors of an operator's layers below each other: none, one, or stripes. */
export function layerStripes(build: Build, kernel: number, op: number): string {
  const colors = op < 0 ? [] : layersOfOp(build, kernel, op).slice(0, MOST_STRIPES).map((layer) => layerColor(layer));
  if (colors.length < 2) return colors[0] ?? "transparent";
  const stops = colors.map((color, n) => `${color} ${(n / colors.length) * 100}% ${((n + 1) / colors.length) * 100}%`);
  return `linear-gradient(${stops.join(", ")})`;
}
