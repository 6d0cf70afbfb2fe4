// Draws a scene onto a canvas. Far off, boxes are rectangles of one color and lines are straight, drawn
// color by color; near by, they have texts. Only the visible part is drawn.

import type { Camera } from "./camera";
import { cut, FONT, LABEL, SMALL, TITLE } from "./measure";
import { layerRgb } from "./rgb";
import { colorOf, type Shown } from "./shown";
import type { Box, Scene } from "./scene";

type Context = CanvasRenderingContext2D;

/** Below these scales boxes have no texts, or only a single color. */
const TEXT = 0.42;
const DETAIL = 0.58;
const FAR = 0.26;
const DIMMED = 0.36;

export function paint(context: Context, camera: Camera, shown: Shown, ratio: number): void {
  const { look } = shown;
  context.setTransform(1, 0, 0, 1, 0, 0);
  context.globalAlpha = 1;
  context.fillStyle = look.panel;
  context.fillRect(0, 0, camera.width * ratio, camera.height * ratio);
  const s = camera.scale * ratio;
  context.setTransform(s, 0, 0, s, -camera.x * s, -camera.y * s);
  const sight = camera.sight;
  clusters(context, camera, shown, sight);
  edges(context, camera, shown, sight);
  if (camera.scale < FAR) farItems(context, shown, sight);
  else nearItems(context, camera, shown, sight);
  labels(context, camera, shown, sight);
  trail(context, camera, shown, ratio);
}

/** Clusters from the outside in: groups are thin, layers in their color, kernels are hulls. */
function clusters(context: Context, camera: Camera, shown: Shown, sight: Box): void {
  const { scene, look } = shown;
  const thin = 1 / camera.scale;
  scene.view.clusters.forEach((cluster, at) => {
    const box = scene.cluster(at);
    if (!meets(box, sight)) return;
    if (box.height * camera.scale < 3) return;
    const hit = shown.clusterHits?.[at] === 1;
    const pointed = shown.pointed?.kind === "cluster" && shown.pointed.at === at;
    const kernel = cluster.kind === "kernel";
    const color =
      cluster.kind === "layer" && cluster.layer >= 0 ? layerRgb(look.dark, cluster.layer) : kernel ? look.accent : look.dim;
    round(context, box, kernel ? 14 : 7);
    context.fillStyle = kernel ? look.accent : color;
    context.globalAlpha = hit ? 0.16 : kernel ? 0.07 : cluster.kind === "group" ? 0.035 : 0.08;
    context.fill();
    context.globalAlpha = hit || pointed ? 1 : kernel ? 0.75 : 0.45;
    context.strokeStyle = hit ? look.accent : color;
    context.lineWidth = (hit || pointed ? 2 : kernel ? 1.3 : 1) * Math.min(thin, 1.6);
    context.setLineDash(cluster.kind === "body" ? [5, 4] : []);
    context.stroke();
  });
  context.setLineDash([]);
  context.globalAlpha = 1;
}

function edges(context: Context, camera: Camera, shown: Shown, sight: Box): void {
  const { scene, look, hits } = shown;
  const pairs = scene.view.edges;
  const far = camera.scale < FAR;
  const weak: number[] = [];
  const plain: number[] = [];
  const strong: number[] = [];
  const pointed = shown.pointed?.kind === "edge" ? shown.pointed.at : -1;
  const around = shown.key >= 0 ? shown.key : shown.pointed?.kind === "item" ? shown.pointed.at : -1;
  scene.edgesIn(sight, (at) => {
    const source = pairs[2 * at] as number;
    const target = pairs[2 * at + 1] as number;
    if (at === pointed || source === around || target === around) strong.push(at);
    else if (!hits) plain.push(at);
    else if (hits[source] && hits[target]) strong.push(at);
    else weak.push(at);
  });
  const thin = 1 / camera.scale;
  const draw = (which: readonly number[], color: string, alpha: number, width: number) => {
    if (!which.length) return;
    context.globalAlpha = alpha;
    context.strokeStyle = color;
    context.lineWidth = Math.min(width * thin, far ? Infinity : width * 1.6);
    context.beginPath();
    for (const at of which) line(context, scene, at, far);
    context.stroke();
    if (far) return;
    context.fillStyle = color;
    context.beginPath();
    for (const at of which) head(context, scene, at);
    context.fill();
  };
  draw(weak, look.dim, 0.25, 1);
  draw(plain, look.dim, far ? 0.5 : 0.75, far ? 0.8 : 1.2);
  draw(strong, look.accent, 1, 1.8);
  context.globalAlpha = 1;
}

function line(context: Context, scene: Scene, edge: number, far: boolean): void {
  const { points, start } = scene.placed;
  const first = start[edge] as number;
  const end = start[edge + 1] as number;
  let x = points[first] as number;
  let y = points[first + 1] as number;
  context.moveTo(x, y);
  for (let k = first + 2; k < end; k += 2) {
    const nextX = points[k] as number;
    const nextY = points[k + 1] as number;
    if (far || nextX === x) context.lineTo(nextX, nextY);
    else {
      const half = (y + nextY) / 2;
      context.bezierCurveTo(x, half, nextX, half, nextX, nextY);
    }
    x = nextX;
    y = nextY;
  }
}

function head(context: Context, scene: Scene, edge: number): void {
  const { points, start } = scene.placed;
  const end = start[edge + 1] as number;
  const x = points[end - 2] as number;
  const y = points[end - 1] as number;
  context.moveTo(x, y);
  context.lineTo(x - 3.5, y - 7);
  context.lineTo(x + 3.5, y - 7);
}

function farItems(context: Context, shown: Shown, sight: Box): void {
  const { scene, hits } = shown;
  const { x, y } = scene.placed;
  const byColor = new Map<string, number[]>();
  const weak = new Map<string, number[]>();
  scene.itemsIn(sight, (at) => {
    const colors = hits && !hits[at] ? weak : byColor;
    const color = colorOf(shown, at);
    const found = colors.get(color);
    if (found) found.push(at);
    else colors.set(color, [at]);
  });
  for (const [colors, alpha] of [[weak, DIMMED], [byColor, 1]] as const) {
    context.globalAlpha = alpha;
    for (const [color, items] of colors) {
      context.fillStyle = color;
      for (const at of items) context.fillRect(x[at] as number, y[at] as number, scene.width[at] as number, scene.height[at] as number);
    }
  }
  context.globalAlpha = 1;
}

function nearItems(context: Context, camera: Camera, shown: Shown, sight: Box): void {
  const { scene, look, hits } = shown;
  const seen: number[] = [];
  scene.itemsIn(sight, (at) => seen.push(at));
  for (const at of seen) {
    context.globalAlpha = hits && !hits[at] ? DIMMED : 1;
    box(context, shown, at);
  }
  if (camera.scale >= TEXT) texts(context, camera, shown, seen);
  context.globalAlpha = 1;
  for (const at of seen) {
    const change = shown.changes?.[at];
    if (!change) continue;
    const frame = scene.item(at);
    context.strokeStyle = change === "+" ? look.good : look.hot;
    context.setLineDash(change === "+" ? [] : [6, 4]);
    context.lineWidth = 2.5;
    round(context, grown(frame, 3), 7);
    context.stroke();
    context.setLineDash([]);
    badge(context, frame.x, frame.y, change, change === "+" ? look.good : look.hot, look.panel);
  }
  if (shown.key >= 0) {
    context.strokeStyle = look.accent;
    context.lineWidth = 2.5 / Math.min(1, camera.scale);
    round(context, grown(scene.item(shown.key), 5), 9);
    context.stroke();
  }
}

function box(context: Context, shown: Shown, at: number): void {
  const { scene, look, hits } = shown;
  const item = scene.view.items[at];
  const frame = scene.item(at);
  const role = item?.node?.role ?? "";
  const pill = role === "input" || role === "output" || role === "constant";
  const radius = pill ? frame.height / 2 : 6;
  const alpha = context.globalAlpha;
  const color = role === "input" || role === "output" ? look.accent : colorOf(shown, at);
  if (item?.cluster) {
    // Something behind it: there is more inside.
    context.strokeStyle = color;
    context.lineWidth = 1;
    context.fillStyle = look.panel;
    round(context, { ...frame, x: frame.x + 4, y: frame.y + 4 }, radius);
    context.fill();
    context.stroke();
  }
  round(context, frame, radius);
  context.fillStyle = role === "constant" ? look.raised : look.panel;
  context.fill();
  context.globalAlpha = alpha * (shown.heat?.[at] ? 0.5 : role === "constant" ? 0 : look.dark ? 0.2 : 0.13);
  context.fillStyle = color;
  context.fill();
  context.globalAlpha = alpha;
  const marked = hits?.[at] === 1 || (shown.pointed?.kind === "item" && shown.pointed.at === at);
  context.strokeStyle = marked ? look.accent : color;
  context.lineWidth = marked ? 2.4 : 1;
  if (role === "constant" && !marked) context.strokeStyle = look.line;
  context.stroke();
  if (!pill) stripe(context, shown, at, frame);
}

/** The colors of all layers that a box serves, at its left side. */
function stripe(context: Context, shown: Shown, at: number, frame: Box): void {
  const layers = (shown.layers[at] as readonly number[]).slice(0, 12);
  const height = (frame.height - 8) / Math.max(1, layers.length);
  layers.forEach((layer, n) => {
    context.fillStyle = layerRgb(shown.look.dark, layer);
    context.fillRect(frame.x + 4, frame.y + 4 + n * height, 4, height - (layers.length > 1 ? 0.6 : 0));
  });
}

function badge(context: Context, x: number, y: number, text: string, color: string, back: string): void {
  context.fillStyle = color;
  context.beginPath();
  context.arc(x, y, 7.5, 0, 2 * Math.PI);
  context.fill();
  context.fillStyle = back;
  context.font = `bold 12px ${FONT}`;
  context.textAlign = "center";
  context.textBaseline = "middle";
  context.fillText(text, x, y + 0.5);
}

interface Cut {
  title: string;
  second: string;
  third: string;
}
const cuts = new WeakMap<Scene, Cut[]>();

/** Texts cut to their boxes, once a scene. */
function cutOf(context: Context, scene: Scene, at: number): Cut {
  let all = cuts.get(scene);
  if (!all) cuts.set(scene, (all = []));
  let found = all[at];
  if (!found) {
    const { title, second, third } = scene.lines[at] as Cut;
    const width = scene.width[at] as number;
    const item = scene.view.items[at];
    const constant = item?.node?.role === "constant";
    const fit = (text: string, font: string, room: number) => {
      context.font = font;
      return cut(text, room, (part) => context.measureText(part).width);
    };
    found = {
      title: fit(title, constant ? small : bold, width - (constant ? 10 : 32)),
      second: fit(second, small, width - 20),
      third: fit(third, small, width - 20),
    };
    all[at] = found;
  }
  return found;
}
const bold = `bold ${TITLE}px ${FONT}`;
const small = `${SMALL}px ${FONT}`;

function texts(context: Context, camera: Camera, shown: Shown, seen: readonly number[]): void {
  const { scene, look, hits } = shown;
  context.textBaseline = "alphabetic";
  const detail = camera.scale >= DETAIL;
  for (const at of seen) cutOf(context, scene, at);
  // Font by font: changing it costs.
  const each = (font: string, color: string, put: (at: number, frame: Box, texts: Cut) => void) => {
    context.font = font;
    context.fillStyle = color;
    for (const at of seen) {
      context.globalAlpha = hits && !hits[at] ? DIMMED + 0.15 : 1;
      put(at, scene.item(at), cutOf(context, scene, at));
    }
  };
  const roles = (at: number) => scene.view.items[at]?.node?.role ?? "op";
  context.textAlign = "left";
  each(bold, look.text, (at, frame, { title }) => {
    const role = roles(at);
    if (role === "constant") return;
    const only = !scene.lines[at]?.second;
    const left = role === "op" ? 14 : 13;
    context.fillText(title, frame.x + left, frame.y + (only ? frame.height / 2 + 4 : 16));
  });
  if (detail) {
    each(small, look.dim, (at, frame, { title, second, third }) => {
      if (roles(at) === "constant") return context.fillText(title, frame.x + 7, frame.y + 12.5);
      if (second) context.fillText(second, frame.x + 14, frame.y + 30);
      if (third) context.fillText(third, frame.x + 14, frame.y + 43);
    });
  }
  each(`10px ${FONT}`, look.text, (at, frame) => {
    const item = scene.view.items[at];
    const layer = item?.node?.marks[0];
    if (item?.cluster) return context.fillText("▸", frame.x + frame.width - 15, frame.y + 15);
    if (layer === undefined) return;
    context.fillStyle = layerRgb(look.dark, layer);
    context.fillText("◆", frame.x + frame.width - 15, frame.y + 15);
  });
}

/** Names of clusters: in their heads near by; far off, of the outermost ones, in a size to be read. */
function labels(context: Context, camera: Camera, shown: Shown, sight: Box): void {
  const { scene, look } = shown;
  const { clusters: all, parents } = scene.view;
  const s = camera.scale;
  const far = s < TEXT;
  const size = s >= 0.6 ? LABEL : (LABEL * 0.6) / Math.max(s, 0.02);
  context.textAlign = "left";
  context.textBaseline = "middle";
  context.font = `bold ${size}px ${FONT}`;
  context.lineJoin = "round";
  all.forEach((cluster, at) => {
    const box = scene.cluster(at);
    if (!meets(box, sight) || (!far && box.y + 2 * size < sight.y)) return;
    if (far && (box.height * s < 26 || box.width * s < 40)) return;
    if (far && (parents[at] as number) >= 0 && depthOf(parents, at) > 1) return;
    const mark = far ? "" : "▾ ";
    const text = cut(mark + cluster.title, box.width - 14, (part) => context.measureText(part).width);
    const y = box.y + size * 0.95 + 1;
    // Lines pass behind names.
    context.globalAlpha = 0.9;
    context.strokeStyle = look.panel;
    context.lineWidth = size * 0.4;
    context.strokeText(text, box.x + 7, y);
    context.globalAlpha = shown.clusterHits && !shown.clusterHits[at] && cluster.kind === "kernel" ? 0.5 : 1;
    context.fillStyle = cluster.kind === "kernel" ? look.accent : cluster.layer >= 0 ? layerRgb(look.dark, cluster.layer) : look.text;
    context.fillText(text, box.x + 7, y);
  });
  context.globalAlpha = 1;
}

/** Where the reader is: the clusters whose heads are out of sight, outermost first, above on the left. */
function trail(context: Context, camera: Camera, shown: Shown, ratio: number): void {
  const { scene, look } = shown;
  const middle = camera.x + camera.width / camera.scale / 2;
  const names: string[] = [];
  scene.view.clusters.forEach((cluster, at) => {
    const box = scene.cluster(at);
    const head = 24 / Math.min(1, camera.scale);
    const above = box.y + head < camera.y + head / 2 && box.y + box.height > camera.y + head;
    if (above && box.x <= middle && box.x + box.width >= middle) names.push(cluster.title);
  });
  if (!names.length) return;
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.font = `bold ${LABEL}px ${FONT}`;
  context.textBaseline = "middle";
  const text = cut(names.join(" › "), Math.max(60, camera.width - 220), (part) => context.measureText(part).width);
  const width = context.measureText(text).width + 16;
  context.globalAlpha = 0.92;
  context.fillStyle = look.raised;
  context.beginPath();
  context.roundRect(8, 8, width, 22, 5);
  context.fill();
  context.globalAlpha = 1;
  context.fillStyle = look.text;
  context.fillText(text, 16, 19.5);
}

export function depthOf(parents: readonly number[], at: number): number {
  let depth = 0;
  for (let up = at; up >= 0; up = parents[up] as number) depth++;
  return depth;
}

export function meets(a: Box, b: Box): boolean {
  return a.x < b.x + b.width && a.x + a.width > b.x && a.y < b.y + b.height && a.y + a.height > b.y;
}

function grown(box: Box, by: number): Box {
  return { x: box.x - by, y: box.y - by, width: box.width + 2 * by, height: box.height + 2 * by };
}

function round(context: Context, box: Box, radius: number): void {
  context.beginPath();
  context.roundRect(box.x, box.y, box.width, box.height, Math.min(radius, box.height / 2, box.width / 2));
}
