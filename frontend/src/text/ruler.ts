// The strip at the right edge of a pane of text: the positions, in the whole text, of the lines that
// belong to the focus. A click goes there.

import type { EditorView } from "@codemirror/view";
import { layerColorOn } from "../colors";
import { first, WEAK } from "./content";
import { lit, look } from "./marks";

export const WIDTH = 10;

export class Ruler {
  readonly dom = document.createElement("canvas");
  private readonly resized: ResizeObserver;
  private pending = 0;

  constructor(private readonly view: EditorView) {
    const { style } = this.dom;
    style.position = "absolute";
    style.top = "0";
    style.right = "0";
    style.width = `${WIDTH}px`;
    style.height = "100%";
    style.cursor = "pointer";
    this.dom.title = "Lines that belong to the focus; click to go there";
    this.dom.dataset["ruler"] = "";
    this.dom.addEventListener("pointerdown", (event) => {
      this.dom.setPointerCapture(event.pointerId);
      this.jump(event.offsetY);
    });
    this.dom.addEventListener("pointermove", (event) => {
      if (event.buttons) this.jump(event.offsetY);
    });
    this.resized = new ResizeObserver(() => this.draw());
    this.resized.observe(this.dom);
  }

  /** Draws before the next frame. */
  draw(): void {
    this.pending ||= requestAnimationFrame(() => {
      this.pending = 0;
      this.paint();
    });
  }

  destroy(): void {
    this.resized.disconnect();
    cancelAnimationFrame(this.pending);
  }

  private paint(): void {
    const ratio = devicePixelRatio || 1;
    const height = this.dom.clientHeight;
    this.dom.width = WIDTH * ratio;
    this.dom.height = height * ratio;
    const pen = this.dom.getContext("2d");
    if (!pen || !height) return;
    pen.scale(ratio, ratio);
    const style = getComputedStyle(this.dom);
    const dark = style.colorScheme !== "light";
    pen.fillStyle = style.getPropertyValue("--raised");
    pen.fillRect(0, 0, WIDTH, height);
    const { scrollTop, clientHeight, scrollHeight } = this.view.scrollDOM;
    if (scrollHeight > clientHeight) {
      pen.fillStyle = style.getPropertyValue("--line");
      pen.fillRect(0, (scrollTop / scrollHeight) * height, WIDTH, Math.max(6, (clientHeight / scrollHeight) * height));
    }
    const { touched, chosen, layers } = this.view.state.field(lit);
    const content = this.view.state.facet(look)?.content;
    const lines = this.view.state.doc.lines;
    const size = Math.max(2, height / lines);
    for (const [line, strength] of touched) {
      const layer = first(content?.layersOf(line) ?? [], layers);
      pen.fillStyle = layerColorOn(dark, layer, strength === WEAK ? 0.35 : 1);
      pen.fillRect(strength === WEAK ? 5 : 1, this.at(line, lines, height), strength === WEAK ? 4 : 8, size);
    }
    if (chosen) {
      pen.fillStyle = style.getPropertyValue("--hot");
      pen.fillRect(0, this.at(chosen, lines, height) - 1, WIDTH, 3);
    }
  }

  private at(line: number, lines: number, height: number): number {
    // Short texts fill only the top of their pane: ticks stand beside their lines.
    const { scrollHeight, clientHeight } = this.view.scrollDOM;
    const full = scrollHeight > clientHeight ? height : Math.min(height, lines * this.view.defaultLineHeight);
    return ((line - 1) / lines) * full;
  }

  private jump(y: number): void {
    const { scrollHeight, clientHeight } = this.view.scrollDOM;
    this.view.scrollDOM.scrollTop = (y / this.dom.clientHeight) * scrollHeight - clientHeight / 2;
  }
}
