// One color for each layer, the same in all panes. Colors are in OKLCH, where equal lightness looks
// equally light. Hue and lightness both change from a layer to the next, with periods that share no
// divisor: 24 colors, of which neighbors differ for color-blind eyes as well (by lightness).

/** Hues near those of Okabe and Ito's palette, in an order that keeps neighbors far apart. */
export const HUES = [250, 65, 205, 105, 345, 160, 300, 30] as const;
/** Added to the theme's lightness, in per cent. */
export const STEPS = [0, 11, -11] as const;
/** The values of `--layer-light` and `--layer-chroma` in theme.css, for canvases, which have no CSS variables. */
const DARK = { light: 72, chroma: 0.095 } as const;
const LIGHT = { light: 54, chroma: 0.095 } as const;

/** Returns a layer's color, for text marks, hulls and links; it works on both themes. */
export function layerColor(layer: number, alpha = 1): string {
  const [hue, step] = place(layer);
  return `oklch(calc(var(--layer-light) + ${step}%) var(--layer-chroma) ${hue} / ${alpha})`;
}

/** The same for a canvas. */
export function layerColorOn(dark: boolean, layer: number, alpha = 1): string {
  const [hue, step] = place(layer);
  const { light, chroma } = dark ? DARK : LIGHT;
  return `oklch(${light + step}% ${chroma} ${hue} / ${alpha})`;
}

function place(layer: number): [hue: number, step: number] {
  return [HUES[layer % HUES.length] ?? 0, STEPS[layer % STEPS.length] ?? 0];
}
