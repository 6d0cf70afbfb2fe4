// OKLCH colors as #rrggbb, which every canvas and every reader of SVG files takes, and quickly.
// The matrices are those of Björn Ottosson's "A perceptual color space for image processing".

import { layerColorOn } from "../colors";

const FORM = /^oklch\(\s*([\d.]+)%\s+([\d.]+)\s+([\d.]+)(?:deg)?\s*(?:\/\s*[\d.]+\s*)?\)$/;

/** Returns an OKLCH color as hexadecimal, without its alpha; other colors as they are. */
export function rgb(color: string): string {
  const found = FORM.exec(color);
  if (!found) return color;
  const [light, chroma, hue] = [Number(found[1]) / 100, Number(found[2]), (Number(found[3]) * Math.PI) / 180];
  const a = chroma * Math.cos(hue);
  const b = chroma * Math.sin(hue);
  const l = (light + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (light - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (light - 0.0894841775 * a - 1.291485548 * b) ** 3;
  const linear = [
    4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
    -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
    -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s,
  ];
  return `#${linear.map(channel).join("")}`;
}

function channel(linear: number): string {
  const clipped = Math.min(1, Math.max(0, linear));
  const value = clipped <= 0.0031308 ? 12.92 * clipped : 1.055 * clipped ** (1 / 2.4) - 0.055;
  return Math.round(value * 255).toString(16).padStart(2, "0");
}

const known = new Map<number, string>();

/** A layer's color, cached. */
export function layerRgb(dark: boolean, layer: number): string {
  const key = layer * 2 + (dark ? 1 : 0);
  let found = known.get(key);
  if (found === undefined) known.set(key, (found = rgb(layerColorOn(dark, layer))));
  return found;
}
