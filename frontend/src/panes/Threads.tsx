// Links drawn between neighboring panes: from each focused line to its counterparts in
// the next pane. Redrawn in each frame in which something moved.

import { useEffect, useRef } from "preact/hooks";
import { layerColor } from "../colors";
import { focus, panes } from "../state";
import { lines } from "./lines";
import { linksBetween, type Link } from "./links";

/** The most spots of a pane that links start from, and the most links between two panes. */
const MOST_SPOTS = 14;
const MOST_LINKS = 60;
const SVG = "http://www.w3.org/2000/svg";

export function Threads() {
  const svg = useRef<SVGSVGElement>(null);
  const shown = panes.value;
  useEffect(() => {
    let frame = 0;
    const draw = () => {
      frame = 0;
      if (svg.current) paint(svg.current);
    };
    const soon = () => (frame ||= requestAnimationFrame(draw));
    const stop = lines.onMoved(soon);
    const stopFocus = focus.subscribe(soon);
    const resized = new ResizeObserver(soon);
    if (svg.current) resized.observe(svg.current);
    soon();
    return () => {
      stop();
      stopFocus();
      resized.disconnect();
      cancelAnimationFrame(frame);
    };
  }, [shown]);
  return <svg class="threads" ref={svg} aria-hidden />;
}

function paint(svg: SVGSVGElement): void {
  const origin = svg.getBoundingClientRect();
  const shapes: SVGElement[] = [];
  const all = panes.peek();
  for (let n = 0; n + 1 < all.length; n++) {
    const [one, other] = [all[n], all[n + 1]];
    if (!one || !other) continue;
    const a = lines.of(one.key)?.spots(MOST_SPOTS);
    const b = lines.of(other.key)?.spots(MOST_SPOTS);
    if (!a || !b) continue;
    const { links, left } = linksBetween(a.spots, b.spots, MOST_LINKS);
    for (const link of links) shapes.push(curve(link, origin));
    const unseen = left + Math.max(0, a.total - a.spots.length) + Math.max(0, b.total - b.spots.length);
    const at = a.spots[0] ?? b.spots[0];
    if (unseen && at) {
      const x = a.spots.length ? at.right : at.left;
      shapes.push(label(`+${unseen}`, x + (a.spots.length ? 20 : -20) - origin.left, origin.height - 6));
    }
  }
  svg.replaceChildren(...shapes);
}

function curve({ a, b, layer }: Link, origin: DOMRect): SVGElement {
  const [x1, x2] = [a.right - origin.left, b.left - origin.left];
  const [y1, y2] = [(a.top + a.bottom) / 2 - origin.top, (b.top + b.bottom) / 2 - origin.top];
  const bend = (x2 - x1) / 2;
  const path = document.createElementNS(SVG, "path");
  path.setAttribute("d", `M${x1} ${y1}C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}`);
  path.style.stroke = layer < 0 ? "var(--dim)" : layerColor(layer, 0.85);
  path.style.strokeWidth = a.strength + b.strength > 3 ? "1.6px" : "0.8px";
  return path;
}

function label(text: string, x: number, y: number): SVGElement {
  const made = document.createElementNS(SVG, "text");
  made.setAttribute("x", String(x));
  made.setAttribute("y", String(y));
  made.setAttribute("text-anchor", "middle");
  made.textContent = text;
  return made;
}
