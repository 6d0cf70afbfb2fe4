// A graph as an SVG document: everything, also what is out of sight. Names are hostile: all texts are
// escaped, and nothing of them gets into attributes unescaped.

import { cut, FONT, LABEL, roughly, SMALL, TITLE } from "./measure";
import { layerRgb } from "./rgb";
import { colorOf, type Shown } from "./shown";

export function svgOf(shown: Shown): string {
  const { scene, look } = shown;
  const { placed, view } = scene;
  const out: string[] = [
    `<svg xmlns="http://www.w3.org/2000/svg" width="${n(placed.width)}" height="${n(placed.height)}" ` +
      `viewBox="0 0 ${n(placed.width)} ${n(placed.height)}" font-family="${escape(FONT)}">`,
    `<rect width="100%" height="100%" fill="${escape(look.panel)}"/>`,
  ];
  view.clusters.forEach((cluster, at) => {
    const box = scene.cluster(at);
    const kernel = cluster.kind === "kernel";
    const color = cluster.kind === "layer" && cluster.layer >= 0 ? layerRgb(look.dark, cluster.layer) : kernel ? look.accent : look.dim;
    const dash = cluster.kind === "body" ? ' stroke-dasharray="5 4"' : "";
    out.push(
      `<rect x="${n(box.x)}" y="${n(box.y)}" width="${n(box.width)}" height="${n(box.height)}" rx="${kernel ? 14 : 7}" ` +
        `fill="${escape(color)}" fill-opacity="${cluster.kind === "group" ? 0.035 : 0.07}" stroke="${escape(color)}" stroke-opacity="0.7"${dash}/>`,
      text(box.x + 8, box.y + 15, fit(cluster.title, LABEL, true, box.width - 16), LABEL, look.text, true),
    );
  });
  for (let edge = 0; edge < view.edges.length / 2; edge++) out.push(edgePath(shown, edge));
  view.items.forEach((item, at) => {
    const box = scene.item(at);
    const role = item.node?.role ?? "op";
    const pill = role !== "op";
    const color = role === "input" || role === "output" ? look.accent : colorOf(shown, at);
    const lines = scene.lines[at];
    out.push(
      `<g><title>${escape([lines?.title, lines?.second, lines?.third].filter(Boolean).join("\n"))}</title>`,
      `<rect x="${n(box.x)}" y="${n(box.y)}" width="${n(box.width)}" height="${n(box.height)}" ` +
        `rx="${pill ? n(box.height / 2) : 6}" fill="${escape(look.panel)}" stroke="${escape(color)}"/>`,
      `<rect x="${n(box.x)}" y="${n(box.y)}" width="${n(box.width)}" height="${n(box.height)}" ` +
        `rx="${pill ? n(box.height / 2) : 6}" fill="${escape(color)}" fill-opacity="${shown.heat?.[at] ? 0.5 : 0.15}"/>`,
    );
    const layers = pill ? [] : (shown.layers[at] ?? []).slice(0, 12);
    layers.forEach((layer, k) => {
      const height = (box.height - 8) / layers.length;
      out.push(
        `<rect x="${n(box.x + 4)}" y="${n(box.y + 4 + k * height)}" width="4" height="${n(height)}" ` +
          `fill="${escape(layerRgb(look.dark, layer))}"/>`,
      );
    });
    if (!lines) return out.push("</g>");
    const only = !lines.second;
    out.push(text(box.x + 14, box.y + (only ? box.height / 2 + 4 : 16), fit(lines.title, TITLE, true, box.width - 30), TITLE, look.text, true));
    if (lines.second) out.push(text(box.x + 14, box.y + 30, fit(lines.second, SMALL, false, box.width - 20), SMALL, look.dim));
    if (lines.third) out.push(text(box.x + 14, box.y + 43, fit(lines.third, SMALL, false, box.width - 20), SMALL, look.dim));
    const mark = item.node?.marks[0];
    if (mark !== undefined) out.push(text(box.x + box.width - 15, box.y + 15, "◆", 10, layerRgb(look.dark, mark)));
    return out.push("</g>");
  });
  out.push("</svg>");
  return out.join("\n");
}

function edgePath({ scene, look }: Shown, edge: number): string {
  const { points, start } = scene.placed;
  const first = start[edge] as number;
  const end = start[edge + 1] as number;
  let x = points[first] as number;
  let y = points[first + 1] as number;
  let path = `M${n(x)} ${n(y)}`;
  for (let k = first + 2; k < end; k += 2) {
    const nextX = points[k] as number;
    const nextY = points[k + 1] as number;
    const half = (y + nextY) / 2;
    path += nextX === x ? `L${n(nextX)} ${n(nextY)}` : `C${n(x)} ${n(half)} ${n(nextX)} ${n(half)} ${n(nextX)} ${n(nextY)}`;
    x = nextX;
    y = nextY;
  }
  const color = escape(look.dim);
  return (
    `<path d="${path}" fill="none" stroke="${color}" stroke-opacity="0.8"/>` +
    `<path d="M${n(x)} ${n(y)}L${n(x - 3.5)} ${n(y - 7)}L${n(x + 3.5)} ${n(y - 7)}Z" fill="${color}"/>`
  );
}

function text(x: number, y: number, what: string, size: number, color: string, bold = false): string {
  const weight = bold ? ' font-weight="bold"' : "";
  return `<text x="${n(x)}" y="${n(y)}" font-size="${size}" fill="${escape(color)}"${weight}>${escape(what)}</text>`;
}

function fit(what: string, size: number, bold: boolean, width: number): string {
  return cut(what, width, (part) => roughly(part, size, bold));
}

function n(value: number): string {
  return String(Math.round(value * 10) / 10);
}

const ENTITIES: Readonly<Record<string, string>> = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;" };

/** Escapes a text for XML, and leaves out characters that XML has not. */
export function escape(what: string): string {
  return what.replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f\ufffe\uffff]/g, "").replace(/[&<>"']/g, (c) => ENTITIES[c] ?? "");
}
