// Layers, kernels (and regions on other backends) or types of operators, ranked by a figure.

import { iterationsText } from "../parts/figures";
import type { Ref } from "../refs";
import type { Heat, Overview } from "../wire";
import { doing, layersText } from "./words";

export const WAYS = ["kernels", "layers", "types"] as const;
export type Way = (typeof WAYS)[number];

export interface Row {
  readonly ref: Ref | null;
  readonly title: string;
  readonly detail: string;
  /** Layers whose colors stand before it. */
  readonly layers: readonly number[];
  readonly figure: number;
}

export function ranked(overview: Overview, heat: Heat, way: Way): Row[] {
  const rows = way === "layers" ? byLayer(overview, heat) : way === "kernels" ? byKernel(overview, heat) : byType(overview, heat);
  return rows.filter((row) => row.figure > 0).sort((a, b) => b.figure - a.figure);
}

function byLayer(overview: Overview, heat: Heat): Row[] {
  return overview.layers.map((layer, n) => ({
    ref: { kind: "layer", name: layer.name },
    title: layer.name,
    detail: layer.op,
    layers: [n],
    figure: heat.layers[n] ?? 0,
  }));
}

const NAMED = 12;

function byKernel(overview: Overview, heat: Heat): Row[] {
  return [...kernelRows(overview, heat), ...regionRows(overview, heat)];
}

function regionRows(overview: Overview, heat: Heat): Row[] {
  return overview.regions.map((region, n) => ({
    ref: { kind: "region", region: n },
    title: `${region.name} on ${region.backend}`,
    detail: layersText(overview, region, NAMED),
    layers: region.layers,
    figure: heat.regions[n] ?? 0,
  }));
}

function kernelRows(overview: Overview, heat: Heat): Row[] {
  return overview.kernels.map((kernel, n) => ({
    ref: { kind: "kernel", kernel: n },
    title: doing(overview, kernel),
    detail: [iterationsText(heat.kernels[n], heat.runs[n]), layersText(overview, kernel, NAMED)].filter(Boolean).join(" · "),
    layers: kernel.layers,
    figure: heat.kernels[n] ?? 0,
  }));
}

function byType(overview: Overview, heat: Heat): Row[] {
  const found = new Map<string, { figure: number; layers: number[] }>();
  overview.layers.forEach((layer, n) => {
    const figure = heat.layers[n] ?? 0;
    if (figure <= 0) return;
    const of = found.get(layer.op) ?? { figure: 0, layers: [] };
    of.figure += figure;
    of.layers.push(n);
    found.set(layer.op, of);
  });
  return [...found].map(([type, { figure, layers }]) => ({
    ref: null,
    title: type || "(no type)",
    detail: layers.length === 1 ? (overview.layers[layers[0] ?? 0]?.name ?? "") : `${layers.length} layers`,
    layers: [],
    figure,
  }));
}

/** How many of the first rows make up a share of the whole. */
export function fewest(rows: readonly Row[], share: number): number {
  const total = rows.reduce((sum, row) => sum + row.figure, 0);
  let sum = 0;
  for (const [n, row] of rows.entries()) {
    sum += row.figure;
    if (sum >= share * total) return n + 1;
  }
  return rows.length;
}
