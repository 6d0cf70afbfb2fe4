// Sizes of boxes, from the texts in them.

import type { ToPlace } from "./place";
import type { GraphNode } from "./graph";
import type { Item, View } from "./visible";

export const FONT = '"DejaVu Sans", system-ui, sans-serif';
export const TITLE = 12;
export const SMALL = 10;
export const LABEL = 11;

export type Measure = (text: string, size: number, bold: boolean) => number;

/** Approximate widths without a canvas, from the average width of a letter. */
export const roughly: Measure = (text, size, bold) => text.length * size * (bold ? 0.64 : 0.58);

/** The lines of text in a box: operator, result, details. */
export interface Lines {
  readonly title: string;
  readonly second: string;
  readonly third: string;
}

export function linesOf(item: Item): Lines {
  const { node, cluster } = item;
  if (cluster) {
    const ops = item.operators;
    return { title: cluster.title, second: `${ops} ${ops === 1 ? "operator" : "operators"}`, third: "" };
  }
  if (!node) return { title: "", second: "", third: "" };
  if (node.role === "constant") return { title: shortType(node.type) || node.title, second: "", third: "" };
  return { title: shortName(node.title), second: shortType(node.type), third: third(node) };
}

function third(node: GraphNode): string {
  if (node.role !== "op") return "";
  return node.by ? `by ${node.by}${node.detail ? ` · ${node.detail}` : ""}` : node.detail;
}

/** Names of operators say where they are from: `nn.conv2d` is conv2d to a reader. */
export function shortName(name: string): string {
  return name.replace(/^nn\./, "");
}

export function shortType(type: string): string {
  return type.replace(/, /g, ",");
}

const WIDEST = 210;
const NARROWEST = 104;

export function sizeOf(item: Item, measure: Measure): { width: number; height: number } {
  const { title, second, third } = linesOf(item);
  if (item.node?.role === "constant") return { width: Math.min(WIDEST, measure(title, SMALL, false) + 14), height: 18 };
  const wanted = Math.max(measure(title, TITLE, true) + 34, measure(second, SMALL, false) + 28, NARROWEST);
  const width = Math.min(WIDEST, wanted);
  return { width: Math.ceil(width / 2) * 2, height: third ? 50 : second ? 38 : 26 };
}

export function toPlace(view: View, measure: Measure): ToPlace {
  const width = new Float32Array(view.items.length);
  const height = new Float32Array(view.items.length);
  view.items.forEach((item, at) => {
    const size = sizeOf(item, measure);
    width[at] = size.width;
    height[at] = size.height;
  });
  return {
    width, height,
    inside: Int32Array.from(view.items, (item) => item.inside),
    parents: Int32Array.from(view.parents),
    label: Float32Array.from(view.clusters, (cluster) => Math.min(240, measure(cluster.title, LABEL, true) + 18)),
    edges: Int32Array.from(view.edges),
  };
}

/** Cuts a text with … to a width. */
export function cut(text: string, width: number, measure: (text: string) => number): string {
  if (measure(text) <= width) return text;
  let low = 0;
  let high = text.length;
  while (low < high) {
    const half = (low + high + 1) >> 1;
    if (measure(`${text.slice(0, half)}…`) <= width) low = half;
    else high = half - 1;
  }
  return low ? `${text.slice(0, low)}…` : "";
}
