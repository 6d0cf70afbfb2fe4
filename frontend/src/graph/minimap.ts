// The whole graph in a column beside it, with a frame around the visible part.

import type { Camera } from "./camera";
import type { Placed } from "./place";
import { colorOf, type Shown } from "./shown";

/** How wide the minimap is, in a column of its own (`.graph-side`): it covers no nodes. */
const WIDTH = 64;
/** The horizontal stretch of long graphs, which would be too narrow otherwise. */
const STRETCH = 12;

function sizeFor({ width, height }: Placed, camera: Camera): { width: number; height: number } {
  const own = (WIDTH * height) / Math.max(1, width);
  const long = Math.max(120, own / 3);
  return { width: WIDTH, height: Math.round(Math.min(camera.height - 16, Math.max(24, own > 120 ? long : own))) };
}

/** Draws the graph once per change, below the frame of the visible part. */
export class Minimap {
  private readonly picture = document.createElement("canvas");
  private drawn: Shown | null = null;
  private scaleX = 1;
  private scaleY = 1;
  private width = 1;
  private height = 1;
  private left = 0;
  private top = 0;

  constructor(
    private readonly canvas: HTMLCanvasElement,
    private readonly camera: Camera,
  ) {}

  draw(shown: Shown): void {
    const ratio = devicePixelRatio;
    const size = sizeFor(shown.scene.placed, this.camera);
    const resized = size.width !== this.width || size.height !== this.height;
    if (resized) {
      Object.assign(this, size);
      for (const canvas of [this.canvas, this.picture]) {
        canvas.width = Math.round(size.width * ratio);
        canvas.height = Math.round(size.height * ratio);
        canvas.style.width = `${size.width}px`;
        canvas.style.height = `${size.height}px`;
      }
    }
    if (resized || !same(this.drawn, shown)) this.paintAll(shown, ratio);
    this.drawn = shown;
    const context = this.canvas.getContext("2d");
    if (!context) return;
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, this.canvas.width, this.canvas.height);
    context.drawImage(this.picture, 0, 0);
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    const { x, y, width, height } = this.camera.sight;
    const box = {
      x: Math.max(1, this.left + x * this.scaleX), y: Math.max(1, this.top + y * this.scaleY),
      right: Math.min(this.width - 1, this.left + (x + width) * this.scaleX),
      bottom: Math.min(this.height - 1, this.top + (y + height) * this.scaleY),
    };
    context.strokeStyle = shown.look.accent;
    context.fillStyle = shown.look.accent;
    context.globalAlpha = 0.18;
    context.fillRect(box.x, box.y, Math.max(3, box.right - box.x), Math.max(3, box.bottom - box.y));
    context.globalAlpha = 1;
    context.lineWidth = 1.5;
    context.strokeRect(box.x, box.y, Math.max(3, box.right - box.x), Math.max(3, box.bottom - box.y));
  }

  /** The point of the graph at a point of the minimap. */
  at(px: number, py: number): { x: number; y: number } {
    return { x: (px - this.left) / this.scaleX, y: (py - this.top) / this.scaleY };
  }

  private paintAll(shown: Shown, ratio: number): void {
    const context = this.picture.getContext("2d");
    if (!context) return;
    const { scene, hits } = shown;
    const { placed } = scene;
    this.scaleY = Math.min((this.height - 8) / placed.height, ((this.width - 8) / placed.width) * STRETCH);
    this.scaleX = Math.min((this.width - 8) / placed.width, this.scaleY * STRETCH);
    this.left = (this.width - placed.width * this.scaleX) / 2;
    this.top = (this.height - placed.height * this.scaleY) / 2;
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, this.picture.width, this.picture.height);
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    for (let at = 0; at < scene.view.items.length; at++) {
      context.globalAlpha = hits && !hits[at] ? 0.25 : 1;
      context.fillStyle = hits?.[at] ? shown.look.accent : colorOf(shown, at);
      context.fillRect(
        this.left + (placed.x[at] as number) * this.scaleX, this.top + (placed.y[at] as number) * this.scaleY,
        Math.max(1.2, (scene.width[at] as number) * this.scaleX), Math.max(0.8, (scene.height[at] as number) * this.scaleY),
      );
    }
    context.globalAlpha = 1;
  }
}

function same(a: Shown | null, b: Shown): boolean {
  return a !== null && a.scene === b.scene && a.look === b.look && a.heat === b.heat && a.hits === b.hits;
}
