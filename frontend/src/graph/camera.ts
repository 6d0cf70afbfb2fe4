// The visible part of the graph, and its scale.

import type { Box } from "./scene";

export const SMALLEST = 0.01;
export const LARGEST = 2.5;
const HEAD = 30;
const MARGIN = 12;
const HAIR = 0.1;
const MOVE_MS = 180;

export class Camera {
  /** The point of the graph in the pane's upper left corner. */
  x = 0;
  y = 0;
  scale = 1;
  width = 1;
  height = 1;
  private moving = 0;

  constructor(private readonly changed: () => void) {}

  /** Sets a new size; the horizontal center stays. */
  resize(width: number, height: number): void {
    if (this.width > 1) this.x += (this.width - width) / 2 / this.scale;
    this.width = width;
    this.height = height;
  }

  /** The visible part of the graph. */
  get sight(): Box {
    return { x: this.x, y: this.y, width: this.width / this.scale, height: this.height / this.scale };
  }

  pan(dx: number, dy: number): void {
    this.stop();
    this.x -= dx / this.scale;
    this.y -= dy / this.scale;
    this.changed();
  }

  /** Zooms about a point of the pane. */
  zoom(factor: number, px = this.width / 2, py = this.height / 2): void {
    this.stop();
    const scale = clamp(this.scale * factor);
    this.x += px / this.scale - px / scale;
    this.y += py / this.scale - py / scale;
    this.scale = scale;
    this.changed();
  }

  /** Fits a box, or its width if the whole box would be too narrow. */
  whole(box: Box, animate: boolean): void {
    const all = Math.min(this.width / (box.width || 1), this.height / (box.height || 1));
    if (all >= HAIR) return this.fit(box, animate);
    const scale = clamp(Math.min(1, this.width / (box.width || 1)));
    const half = this.height / scale / 2;
    const middle = Math.min(Math.max(this.y + this.height / this.scale / 2, box.y + half - HEAD / scale), box.y + box.height - half);
    this.to(box.x + box.width / 2, middle, scale, animate);
  }

  /** Fits a box at a scale of at most 1. */
  fit(box: Box, animate = false): void {
    const scale = clamp(Math.min(this.width / (box.width || 1), this.height / (box.height || 1), 1));
    this.to(box.x + box.width / 2, box.y + box.height / 2, scale, animate);
  }

  /** Shows the top of a tall box at a readable scale, with `middle` in the middle. */
  begin(box: Box, middle: number, readable: number): void {
    const all = Math.min(this.width / (box.width || 1), this.height / (box.height || 1));
    if (all >= readable) return this.fit(box);
    const scale = clamp(Math.min(1, Math.max(readable, this.width / (box.width || 1))));
    const whole = box.width * scale <= this.width;
    this.stop();
    this.scale = scale;
    const half = this.width / 2 / scale;
    // Of a box that is too wide, show the middle, but nothing beyond its ends.
    const beyond = half - MARGIN / scale;
    const inside = Math.min(Math.max(middle, box.x + beyond), box.x + box.width - beyond);
    this.x = (whole ? box.x + box.width / 2 : inside) - half;
    // Below the buttons.
    this.y = box.y - HEAD / scale;
    this.changed();
  }

  /** Scrolls a box into view if needed, zooming no more than necessary. */
  show(box: Box, animate: boolean): void {
    const sight = this.sight;
    const margin = 20 / this.scale;
    const inside =
      box.x >= sight.x + margin && box.y >= sight.y + margin &&
      box.x + box.width <= sight.x + this.width / this.scale - margin && box.y + box.height <= sight.y + sight.height - margin;
    const legible = this.scale >= 0.45;
    if (inside && legible) return;
    const room = Math.min(this.width / (box.width + 80), this.height / (box.height + 80));
    const scale = clamp(Math.min(Math.max(this.scale, 0.75), Math.max(room, 0.45)));
    this.to(box.x + box.width / 2, box.y + box.height / 2, scale, animate);
  }

  center(x: number, y: number): void {
    this.to(x, y, this.scale, false);
  }

  stop(): void {
    cancelAnimationFrame(this.moving);
  }

  private to(cx: number, cy: number, scale: number, animate: boolean): void {
    this.stop();
    const end = { x: cx - this.width / 2 / scale, y: cy - this.height / 2 / scale };
    if (!animate || matchMedia("(prefers-reduced-motion: reduce)").matches) {
      Object.assign(this, end, { scale });
      return this.changed();
    }
    const from = { x: this.x, y: this.y, scale: this.scale };
    const begun = performance.now();
    const step = (now: number) => {
      const t = Math.min(1, Math.max(0, (now - begun) / MOVE_MS));
      const ease = t * (2 - t);
      this.x = from.x + (end.x - from.x) * ease;
      this.y = from.y + (end.y - from.y) * ease;
      this.scale = from.scale + (scale - from.scale) * ease;
      this.changed();
      if (t < 1) this.moving = requestAnimationFrame(step);
    };
    this.moving = requestAnimationFrame(step);
  }
}

function clamp(scale: number): number {
  return Math.min(LARGEST, Math.max(SMALLEST, scale));
}
