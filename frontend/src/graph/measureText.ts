// Widths of texts as the page draws them; what has been measured is kept.

import { FONT, roughly, type Measure } from "./measure";

let context: CanvasRenderingContext2D | null = null;
const known = new Map<string, number>();

export const measureText: Measure = (text, size, bold) => {
  context ??= document.createElement("canvas").getContext("2d");
  if (!context) return roughly(text, size, bold);
  const key = `${bold ? "b" : ""}${size}:${text}`;
  let found = known.get(key);
  if (found === undefined) {
    context.font = `${bold ? "bold " : ""}${size}px ${FONT}`;
    if (known.size > 20000) known.clear();
    known.set(key, (found = context.measureText(text).width));
  }
  return found;
};
