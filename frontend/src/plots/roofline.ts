// The geometry of a roofline plot: roofs, points, labels.
//
// Source: Williams, Waterman and Patterson, Roofline: An Insightful Visual Performance Model for
// Multicore Architectures, 2009.

import { percent } from "../story/shares";
import type { Overview, Roofline, RooflinePoint } from "../wire";
import { logAxis, type Axis } from "./axes";
import { overlap, place, type Box } from "./labels";
import { doing, shortened } from "./words";

/** All uses of one kernel's code. */
export interface Group {
  readonly kernels: readonly number[];
  readonly name: string;
  /** In a word, for a label. */
  readonly short: string;
  readonly ns: number;
  readonly intensity: number;
  readonly gflops: number;
  readonly limit: string;
  readonly limitShare: number;
}

export interface Point extends Group {
  readonly x: number;
  readonly y: number;
  readonly radius: number;
  readonly label: Box | null;
  readonly text: string;
}

export interface Roof {
  readonly name: string;
  readonly text: string;
  readonly from: readonly [number, number];
  readonly to: readonly [number, number];
  /** Where its label begins; it is turned by `Plot.angle` unless it is flat. */
  readonly label: readonly [number, number];
  readonly flat: boolean;
}

export interface Plot {
  readonly x: Axis;
  readonly y: Axis;
  readonly inside: Box;
  readonly roofs: readonly Roof[];
  /** Of the diagonals, in degrees. */
  readonly angle: number;
  readonly points: readonly Point[];
  /** Kernels without arithmetic, which have no place in the plot. */
  readonly rest: readonly Group[];
}

const LEFT = 46;
const RIGHT = 12;
const TOP = 12;
const BOTTOM = 38;
const LETTER = 6.1;
const LINE = 14;
const LARGEST = 19;
const SMALLEST = 3.5;
const LABELED = 14;
const LONGEST = 26;

type Figures = readonly (number | null)[];

/** `heat` (of layers, by their places) says which of a kernel's layers it is named after. */
export function groups(overview: Overview, points: readonly RooflinePoint[], heat: Figures): Group[] {
  const found = new Map<number, RooflinePoint[]>();
  for (const point of points) {
    const distinct = overview.kernels[point.kernel]?.distinct ?? -1;
    found.set(distinct, [...(found.get(distinct) ?? []), point]);
  }
  return [...found.values()]
    .map((uses) => together(overview, uses, heat))
    .sort((a, b) => b.ns - a.ns);
}

/** The type of the layer that has most of a kernel's time. */
function leading(overview: Overview, layers: readonly number[], heat: Figures): string {
  let best = layers[0];
  for (const layer of layers) if ((heat[layer] ?? 0) > (heat[best ?? -1] ?? 0)) best = layer;
  return overview.layers[best ?? -1]?.op ?? "";
}

function together(overview: Overview, uses: readonly RooflinePoint[], heat: Figures): Group {
  const ns = uses.reduce((sum, p) => sum + p.ns, 0);
  const mean = (of: (p: RooflinePoint) => number) => (ns ? uses.reduce((sum, p) => sum + of(p) * p.ns, 0) / ns : 0);
  const first = uses[0];
  const kernel = overview.kernels[first?.kernel ?? -1];
  return {
    kernels: [...uses].sort((a, b) => b.ns - a.ns).map((p) => p.kernel),
    name: kernel ? doing(overview, kernel) : "",
    short: (kernel && leading(overview, kernel.layers, heat)) || (kernel?.name ?? ""),
    ns,
    intensity: first?.intensity ?? 0,
    gflops: mean((p) => p.gflops),
    limit: first?.limit ?? "",
    limitShare: mean((p) => p.limit_share),
  };
}

export function plotted(overview: Overview, roofline: Roofline, heat: Figures, width: number, height: number): Plot {
  const all = groups(overview, roofline.points, heat);
  const total = all.reduce((sum, group) => sum + group.ns, 0);
  const shown = all.filter((group) => group.intensity > 0 && group.gflops > 0);
  const peaks = peaksOf(roofline, shown);
  const top = Math.max(...peaks.map(([, gflops]) => gflops));
  const bandwidths = Object.entries(roofline.bandwidths).sort((a, b) => b[1] - a[1]);
  const slowest = bandwidths.at(-1)?.[1] ?? 1;
  const inside: Box = { x: LEFT, y: TOP, width: Math.max(40, width - LEFT - RIGHT), height: Math.max(40, height - TOP - BOTTOM) };
  const xs = [...shown.map((g) => g.intensity), top / slowest];
  const ys = [...shown.map((g) => g.gflops), top];
  const x = logAxis(Math.min(...xs) / 2.2, Math.max(...xs) * 2.2, inside.x, inside.x + inside.width);
  const y = logAxis(Math.min(...ys) / 2.2, Math.max(...ys) * 2, inside.y + inside.height, inside.y);
  const slope = -(y.at(10) - y.at(1)) / (x.at(10) - x.at(1));
  const angle = -Math.atan(slope);
  const roofs = [...slopes(bandwidths, top, x, y, angle), ...flats(peaks, bandwidths, x, y, inside)];
  return { x, y, inside, roofs, angle: (angle * 180) / Math.PI, points: points(shown, total, x, y, inside, roofs), rest: all.filter((g) => !shown.includes(g)) };
}

/** The relevant peaks: that of the matrix unit only if a kernel may reach it. */
function peaksOf(roofline: Roofline, shown: readonly Group[]): [string, number][] {
  const peaks: [string, number][] = [["f32", roofline.peak_gflops]];
  const tiles = roofline.tile_gflops;
  const beyond = shown.some((g) => g.gflops > roofline.peak_gflops || (g.limit === "compute" && g.gflops / Math.max(g.limitShare, 1e-9) > 1.5 * roofline.peak_gflops));
  if (tiles !== null && beyond) peaks.push(["bf16 tiles", tiles]);
  return peaks;
}

function slopes(bandwidths: readonly [string, number][], top: number, x: Axis, y: Axis, angle: number): Roof[] {
  const taken: Box[] = [];
  return bandwidths.map(([name, gbps]) => {
    const low = Math.max(x.low, y.low / gbps);
    const high = Math.min(x.high, top / gbps);
    const from = [x.at(low), y.at(low * gbps)] as const;
    const to = [x.at(high), y.at(high * gbps)] as const;
    const text = `${name} ${rounded(gbps)} GB/s`;
    // In a frame turned by the slope labels are upright boxes.
    const turned = ([px, py]: readonly [number, number]) => [px * Math.cos(angle) + py * Math.sin(angle), -px * Math.sin(angle) + py * Math.cos(angle)] as const;
    const [begin, height] = turned(from);
    const length = turned(to)[0] - begin;
    const box = (u: number): Box => ({ x: u, y: height - LINE, width: text.length * LETTER, height: LINE });
    let at = begin + 6;
    while (taken.some((other) => overlap(box(at), other)) && at < begin + length) at += 8;
    taken.push(box(at));
    const v = height - 4;
    return { name, text, from, to, label: [at * Math.cos(angle) - v * Math.sin(angle), at * Math.sin(angle) + v * Math.cos(angle)], flat: false };
  });
}

function flats(peaks: readonly [string, number][], bandwidths: readonly [string, number][], x: Axis, y: Axis, inside: Box): Roof[] {
  const fastest = bandwidths[0]?.[1] ?? 1;
  return peaks.map(([name, gflops]) => {
    const from = Math.max(x.low, gflops / fastest);
    const text = `${name} peak ${rounded(gflops)} GFLOP/s`;
    const right = inside.x + inside.width;
    return {
      name, text, flat: true,
      from: [x.at(from), y.at(gflops)],
      to: [right, y.at(gflops)],
      label: [Math.max(inside.x, Math.min(x.at(from) + 4, right - text.length * LETTER)), y.at(gflops) - 5],
    };
  });
}

function points(shown: readonly Group[], total: number, x: Axis, y: Axis, inside: Box, roofs: readonly Roof[]): Point[] {
  const most = shown[0]?.ns ?? 1;
  const bare = shown.map((group) => ({
    ...group,
    x: x.at(group.intensity),
    y: y.at(group.gflops),
    radius: Math.max(SMALLEST, LARGEST * Math.sqrt(group.ns / most)),
    text: `${shortened(group.short, LONGEST)}${group.kernels.length > 1 ? ` ×${group.kernels.length}` : ""}, ${percent(group.ns / total)}`,
  }));
  const taken: Box[] = roofs
    .filter((roof) => roof.flat)
    .map((roof) => ({ x: roof.label[0], y: roof.label[1] - LINE + 3, width: roof.text.length * LETTER, height: LINE }));
  for (const roof of roofs) taken.push(...along(roof, x, y));
  taken.push(...bare.map((p) => ({ x: p.x - 1.2 * p.radius, y: p.y - 1.2 * p.radius, width: 2.4 * p.radius, height: 2.4 * p.radius })));
  const wanted = bare.slice(0, LABELED).map((p) => ({ ...p, radius: 1.2 * p.radius, width: p.text.length * LETTER + 2, height: LINE }));
  // A point's own box must not be in its label's way, so boxes of points are those of all others.
  const labels: (Box | null)[] = place(wanted, taken, inside);
  return bare.map((point, n) => ({ ...point, label: labels[n] ?? null }));
}

/** The label of a slope as boxes along it. */
function along({ flat, label, text }: Roof, x: Axis, y: Axis): Box[] {
  if (flat) return [];
  const rise = (y.at(10) - y.at(1)) / (x.at(10) - x.at(1));
  const length = Math.hypot(1, rise);
  const [right, down] = [1 / length, rise / length];
  return Array.from({ length: Math.ceil((text.length * LETTER) / LINE) }, (_, n) => {
    const at = n * LINE + LINE / 2;
    return { x: label[0] + at * right - LINE / 2, y: label[1] + at * down - LINE / 2, width: LINE, height: LINE };
  });
}

export function rounded(figure: number): string {
  if (figure >= 100) return Math.round(figure).toLocaleString("en");
  return figure >= 10 ? figure.toFixed(0) : figure.toPrecision(2);
}
