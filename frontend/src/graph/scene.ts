// A laid-out graph, ready for drawing and hit tests: boxes and lines are found by position.

import type { Placed } from "./place";
import type { View } from "./visible";
import { linesOf, type Lines } from "./measure";

export interface Box {
  readonly x: number;
  readonly y: number;
  readonly width: number;
  readonly height: number;
}

/** The thing under the pointer. */
export type Hit =
  | { readonly kind: "item"; readonly at: number }
  | { readonly kind: "cluster"; readonly at: number; readonly part: "mark" | "head" | "border" | "inside" }
  | { readonly kind: "edge"; readonly at: number };

/** The height of the bands that index visible things. */
const BAND = 256;

export class Scene {
  readonly lines: readonly Lines[];
  /** Items in an order in which sources come first, for going through them by key. */
  readonly order: readonly number[];
  private readonly itemBands: number[][] = [];
  private readonly edgeBands: number[][] = [];
  private readonly itemSeen: Int32Array;
  private readonly edgeSeen: Int32Array;
  private stamp = 0;

  constructor(
    readonly view: View,
    readonly placed: Placed,
    readonly width: Float32Array,
    readonly height: Float32Array,
  ) {
    this.lines = view.items.map(linesOf);
    this.itemSeen = new Int32Array(view.items.length);
    this.edgeSeen = new Int32Array(view.edges.length / 2);
    const { y, points, start } = placed;
    view.items.forEach((_, at) => {
      const top = y[at] as number;
      this.put(this.itemBands, at, top, top + (height[at] as number));
    });
    for (let edge = 0; edge < view.edges.length / 2; edge++) {
      let low = Infinity;
      let high = -Infinity;
      for (let k = start[edge] as number; k < (start[edge + 1] as number); k += 2) {
        low = Math.min(low, points[k + 1] as number);
        high = Math.max(high, points[k + 1] as number);
      }
      if (low <= high) this.put(this.edgeBands, edge, low, high);
    }
    const x = placed.x;
    this.order = view.items.map((_, at) => at).sort((a, b) => (y[a] as number) - (y[b] as number) || (x[a] as number) - (x[b] as number));
  }

  item(at: number): Box {
    const { x, y } = this.placed;
    return { x: x[at] as number, y: y[at] as number, width: this.width[at] as number, height: this.height[at] as number };
  }

  cluster(at: number): Box {
    const { clusterX, clusterY, clusterWidth, clusterHeight } = this.placed;
    return {
      x: clusterX[at] as number, y: clusterY[at] as number,
      width: clusterWidth[at] as number, height: clusterHeight[at] as number,
    };
  }

  itemsIn(box: Box, each: (at: number) => void): void {
    const { x } = this.placed;
    this.scan(this.itemBands, this.itemSeen, box, (at) => {
      const left = x[at] as number;
      if (left < box.x + box.width && left + (this.width[at] as number) > box.x) each(at);
    });
  }

  edgesIn(box: Box, each: (at: number) => void): void {
    this.scan(this.edgeBands, this.edgeSeen, box, each);
  }

  /** The thing at a point; `near` is the largest distance of a line. */
  hit(px: number, py: number, near: number): Hit | null {
    let found: Hit | null = null;
    const spot = { x: px, y: py, width: 0.01, height: 0.01 };
    this.itemsIn(spot, (at) => {
      const box = this.item(at);
      if (within(box, px, py)) found = { kind: "item", at };
    });
    if (found) return found;
    let best = near;
    this.edgesIn({ x: px - near, y: py - near, width: 2 * near, height: 2 * near }, (at) => {
      const distance = this.distance(at, px, py);
      if (distance < best) {
        best = distance;
        found = { kind: "edge", at };
      }
    });
    if (found) return found;
    for (let at = this.view.clusters.length - 1; at >= 0; at--) {
      const box = this.cluster(at);
      if (!within(box, px, py)) continue;
      const edge = Math.min(px - box.x, box.x + box.width - px, box.y + box.height - py, py - box.y);
      const part = py - box.y < 20 ? (px - box.x < 20 ? "mark" : "head") : edge < near ? "border" : "inside";
      return { kind: "cluster", at, part };
    }
    return null;
  }

  private distance(edge: number, px: number, py: number): number {
    const { points, start } = this.placed;
    let best = Infinity;
    const end = start[edge + 1] as number;
    for (let k = start[edge] as number; k + 3 < end; k += 2) {
      const ax = points[k] as number;
      const ay = points[k + 1] as number;
      const bx = points[k + 2] as number;
      const by = points[k + 3] as number;
      if (py < Math.min(ay, by) - best || py > Math.max(ay, by) + best) continue;
      let lastX = ax;
      let lastY = ay;
      const steps = ax === bx ? 1 : 8;
      for (let n = 1; n <= steps; n++) {
        const t = n / steps;
        const ease = t * t * (3 - 2 * t);
        const nextX = ax + (bx - ax) * ease;
        const nextY = ay + (by - ay) * t;
        best = Math.min(best, toSegment(px, py, lastX, lastY, nextX, nextY));
        lastX = nextX;
        lastY = nextY;
      }
    }
    return best;
  }

  private put(bands: number[][], at: number, top: number, bottom: number): void {
    for (let n = Math.max(0, Math.floor(top / BAND)); n <= Math.floor(bottom / BAND); n++) (bands[n] ??= []).push(at);
  }

  private scan(bands: readonly number[][], seen: Int32Array, box: Box, each: (at: number) => void): void {
    const stamp = ++this.stamp;
    const last = Math.min(bands.length - 1, Math.floor((box.y + box.height) / BAND));
    for (let n = Math.max(0, Math.floor(box.y / BAND)); n <= last; n++) {
      for (const at of bands[n] ?? []) {
        if (seen[at] === stamp) continue;
        seen[at] = stamp;
        each(at);
      }
    }
  }
}

function within(box: Box, x: number, y: number): boolean {
  return x >= box.x && x <= box.x + box.width && y >= box.y && y <= box.y + box.height;
}

function toSegment(px: number, py: number, ax: number, ay: number, bx: number, by: number): number {
  const dx = bx - ax;
  const dy = by - ay;
  const length = dx * dx + dy * dy;
  const t = length ? Math.max(0, Math.min(1, ((px - ax) * dx + (py - ay) * dy) / length)) : 0;
  return Math.hypot(px - ax - t * dx, py - ay - t * dy);
}
