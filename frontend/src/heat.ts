// Color by a figure (time, FLOPs, bytes, share of peak, errors) or by backend. Panes ask `heatColor`; plots/ shows
// the scale. Measurements start here, and affected answers are requested again afterwards.

import { computed, type ReadonlySignal } from "@preact/signals";
import { backendColor, backendOf } from "./backends";
import { builds, value, type Build } from "./builds";
import { isRunning, runJob } from "./jobs";
import { FiguresOf, rangeOf } from "./plots/figures";
import { colorAt, figureText, palette, scaleOf, type Scale } from "./plots/scale";
import type { Here } from "./refs";
import { current, metric, type Metric } from "./state";
import type { Heat, Profiled, TokenCosts } from "./wire";

/** Returns the heat of a thing as a color; null if heat is off or its figure is unknown. */
export type HeatColor = (here: Here) => string | null;

/** The measurement that a metric needs, named as in `Overview.measured`; "" for counted metrics. */
export const NEEDS: Readonly<Record<Metric, "" | "profile" | "errors">> = {
  "": "",
  backend: "",
  time: "profile",
  flops: "",
  bytes: "",
  peak: "profile",
  error: "errors",
  quantization: "",
};

/** Whether a build's figures of a metric are available. */
export function isMeasured(build: Build, by: Metric): boolean {
  const need = NEEDS[by];
  return need === "" || (value(build.overview.value)?.measured.includes(need) ?? false);
}

/** The figures of a metric, null if they are not loaded (yet). */
export function heatIn(build: Build, by: Metric): Heat | null {
  return by && by !== "backend" && isMeasured(build, by) ? value(build.heat(by).value) : null;
}

/** The scale that layers and kernels of all builds share; null without figures. */
export const wholeScale: ReadonlySignal<Scale | null> = computed(() => {
  const by = metric.value;
  const heats = builds.value.map((build) => heatIn(build, by)).filter((heat) => heat !== null);
  if (!heats.length) return null;
  const { least, most } = rangeOf(heats);
  return scaleOf(by, least, most);
});

const figures: ReadonlySignal<ReadonlyMap<string, FiguresOf>> = computed(() => {
  const by = metric.value;
  const scale = wholeScale.value;
  const found = new Map<string, FiguresOf>();
  for (const build of builds.value) {
    const heat = heatIn(build, by);
    const overview = value(build.overview.value);
    if (heat && overview && scale && build.thread.value) found.set(build.id, new FiguresOf(build, overview, by, heat, scale));
  }
  return found;
});

const OFF: HeatColor = () => null;

export const heatColor: ReadonlySignal<HeatColor> = computed(() => {
  if (metric.value === "backend") {
    const color = backendColor.value;
    for (const build of builds.value) void build.thread.value;
    return (here) => {
      const backend = backendOf(here);
      return backend ? color(backend) : null;
    };
  }
  const known = figures.value;
  const colors = palette.value;
  if (!known.size || !colors.length) return OFF;
  return (here) => {
    const level = known.get(here.build)?.level(here.ref) ?? null;
    return level === null ? null : colorAt(colors, level);
  };
});

/** The figure behind the color, with its unit, or the backend; "" if there is none. */
export const heatText: ReadonlySignal<(here: Here) => string> = computed(() => {
  const known = figures.value;
  const by = metric.value;
  if (by === "backend") return backendOf;
  return (here) => {
    const figure = known.get(here.build)?.of(here.ref) ?? null;
    return figure === null ? "" : figureText(by, figure);
  };
});

/** Selects the meaning of colors. A required measurement is offered, not started. */
export function setMetric(by: Metric): void {
  metric.value = by;
}

export const MEASURING = "Measuring";
export const MEASURING_TOKENS = "Measuring the cost of a token";
export const COMPARING = "Comparing with f32";

/** Profiles a build with drawn inputs; shows its time unless colors already mean something measured. */
export async function measure(id: string = current.peek()): Promise<Profiled | null> {
  const build = builds.peek().find((b) => b.id === id);
  if (!build?.source.live || isRunning(id, MEASURING)) return null;
  const done = await runJob<Profiled>(id, "profile", {}, MEASURING);
  if (done) {
    refresh(build, ["heat/time", "heat/peak", "roofline", "timeline"]);
    if (NEEDS[metric.peek()] !== "profile") metric.value = "time";
  }
  return done;
}

/** Measures the cost of a token of a language model. */
export async function measureTokens(id: string): Promise<TokenCosts | null> {
  const build = builds.peek().find((b) => b.id === id);
  if (!build?.source.live || isRunning(id, MEASURING_TOKENS)) return null;
  const done = await runJob<TokenCosts>(id, "tokens", {}, MEASURING_TOKENS);
  if (done) refresh(build, ["tokens"]);
  return done;
}

/** Compares each layer's values with those in f32 at opt level 0, and shows the errors. */
export async function compareErrors(id: string = current.peek()): Promise<Heat | null> {
  const build = builds.peek().find((b) => b.id === id);
  if (!build?.source.live || isRunning(id, COMPARING)) return null;
  const done = await runJob<Heat>(id, "errors", {}, COMPARING);
  if (done) {
    refresh(build, ["heat/error"]);
    metric.value = "error";
  }
  return done;
}

/** Runs the measurement that the selected metric needs. */
export function measureFor(by: Metric, id: string): void {
  void (NEEDS[by] === "errors" ? compareErrors(id) : measure(id));
}

/** Requests answers again that a measurement has changed: figures, stories, the list of measurements. */
function refresh(build: Build, routes: readonly Parameters<Build["ask"]>[0][]): void {
  for (const route of routes) build.ask(route, true);
  for (const [path] of build.loaded()) {
    if (path.startsWith("story/")) build.ask(path as `story/${string}`, true);
  }
  build.ask("overview", true);
}
