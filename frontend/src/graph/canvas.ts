// A graph on a canvas: draws it on changes, and handles mouse, touch and keys.

import { Camera } from "./camera";
import { Minimap } from "./minimap";
import { paint } from "./paint";
import type { Shown } from "./shown";
import type { Hit } from "./scene";

export interface Events {
  pointed(hit: Hit | null, x: number, y: number): void;
  chosen(hit: Hit, twice: boolean): void;
}

/** Smaller moves are clicks. */
const STILL = 4;

export class GraphCanvas {
  readonly camera: Camera;
  private readonly context: CanvasRenderingContext2D | null;
  private readonly minimap: Minimap;
  private shown: Shown | null = null;
  private frame = 0;
  private readonly fingers = new Map<number, { x: number; y: number }>();
  private moved = 0;
  private readonly watched: ResizeObserver;
  /** Called after each frame; benchmarks count them. */
  drawn = 0;

  constructor(
    private readonly canvas: HTMLCanvasElement,
    private readonly mini: HTMLCanvasElement,
    private readonly events: Events,
    resized: () => void,
  ) {
    this.camera = new Camera(() => this.invalidate());
    this.context = canvas.getContext("2d", { alpha: false });
    this.minimap = new Minimap(mini, this.camera);
    this.watched = new ResizeObserver(() => {
      this.resize();
      resized();
    });
    this.watched.observe(canvas);
    canvas.addEventListener("pointerdown", this.down);
    canvas.addEventListener("pointermove", this.move);
    canvas.addEventListener("pointerup", this.up);
    canvas.addEventListener("pointercancel", this.up);
    canvas.addEventListener("pointerleave", this.leave);
    canvas.addEventListener("dblclick", this.twice);
    canvas.addEventListener("wheel", this.wheel, { passive: false });
    mini.addEventListener("pointerdown", this.miniDown);
    mini.addEventListener("pointermove", this.miniMove);
    this.resize();
  }

  close(): void {
    this.watched.disconnect();
    this.camera.stop();
    cancelAnimationFrame(this.frame);
  }

  show(shown: Shown | null): void {
    this.shown = shown;
    this.invalidate();
  }

  invalidate(): void {
    if (!this.frame) this.frame = requestAnimationFrame(this.draw);
  }

  private readonly draw = (): void => {
    this.frame = 0;
    if (!this.context || !this.shown) return;
    paint(this.context, this.camera, this.shown, devicePixelRatio);
    this.minimap.draw(this.shown);
    this.drawn++;
    this.canvas.dataset["drawn"] = String(this.drawn);
  };

  private resize(): void {
    const { clientWidth, clientHeight } = this.canvas;
    if (!clientWidth || !clientHeight) return;
    this.camera.resize(clientWidth, clientHeight);
    this.canvas.width = Math.round(clientWidth * devicePixelRatio);
    this.canvas.height = Math.round(clientHeight * devicePixelRatio);
    if (this.frame) cancelAnimationFrame(this.frame);
    this.draw();
  }

  hit(x: number, y: number): Hit | null {
    const { camera } = this;
    return this.shown?.scene.hit(camera.x + x / camera.scale, camera.y + y / camera.scale, 5 / camera.scale) ?? null;
  }

  private place(event: MouseEvent): { x: number; y: number } {
    const box = this.canvas.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  }

  private readonly down = (event: PointerEvent): void => {
    this.canvas.setPointerCapture(event.pointerId);
    this.fingers.set(event.pointerId, this.place(event));
    this.moved = 0;
  };

  private readonly move = (event: PointerEvent): void => {
    const to = this.place(event);
    const from = this.fingers.get(event.pointerId);
    if (!from) return this.events.pointed(this.hit(to.x, to.y), to.x, to.y);
    const other = [...this.fingers].find(([id]) => id !== event.pointerId)?.[1];
    this.moved += Math.hypot(to.x - from.x, to.y - from.y);
    if (other) {
      // Two fingers: the point between them stays.
      const before = Math.hypot(from.x - other.x, from.y - other.y);
      const after = Math.hypot(to.x - other.x, to.y - other.y);
      if (before > 0) this.camera.zoom(after / before, (to.x + other.x) / 2, (to.y + other.y) / 2);
      this.camera.pan((to.x - from.x) / 2, (to.y - from.y) / 2);
    } else if (this.moved > STILL) {
      this.camera.pan(to.x - from.x, to.y - from.y);
      this.canvas.dataset["dragging"] = "";
      this.events.pointed(null, 0, 0);
    }
    this.fingers.set(event.pointerId, to);
  };

  private readonly up = (event: PointerEvent): void => {
    const at = this.place(event);
    const known = this.fingers.delete(event.pointerId);
    delete this.canvas.dataset["dragging"];
    if (!known || this.moved > STILL || event.type === "pointercancel" || event.button > 0) return;
    const hit = this.hit(at.x, at.y);
    if (hit) this.events.chosen(hit, false);
  };

  private readonly leave = (): void => this.events.pointed(null, 0, 0);

  private readonly twice = (event: MouseEvent): void => {
    const at = this.place(event);
    const hit = this.hit(at.x, at.y);
    if (hit) this.events.chosen(hit, true);
  };

  private readonly wheel = (event: WheelEvent): void => {
    event.preventDefault();
    const unit = event.deltaMode === 1 ? 16 : 1;
    const at = this.place(event);
    // The wheel zooms, as in maps; a touchpad, which scrolls sideways as well, pans.
    if (event.ctrlKey || event.metaKey) this.camera.zoom(Math.exp(-event.deltaY * unit * 0.005), at.x, at.y);
    else if (event.shiftKey && !event.deltaX) this.camera.pan(-event.deltaY * unit, 0);
    else if (Math.abs(event.deltaX) > 0 || event.altKey) this.camera.pan(-event.deltaX * unit, -event.deltaY * unit);
    else this.camera.zoom(Math.exp(-event.deltaY * unit * 0.0016), at.x, at.y);
  };

  private readonly miniDown = (event: PointerEvent): void => {
    this.mini.setPointerCapture(event.pointerId);
    this.miniMove(event);
  };

  private readonly miniMove = (event: PointerEvent): void => {
    if (!event.buttons) return;
    const at = this.minimap.at(event.offsetX, event.offsetY);
    this.camera.stop();
    this.camera.center(at.x, at.y);
  };
}
