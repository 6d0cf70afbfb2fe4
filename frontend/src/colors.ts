// One colour for each layer, the same in all panes. Neighbouring layers differ most: hues go round in
// steps of the golden angle over palettes that colour-blind readers tell apart by lightness as well.

/** Hues of Okabe and Ito's palette, in an order that keeps neighbours far apart. */
const HUES = [205, 40, 160, 325, 25, 250, 55, 185] as const;
const LIGHT = [0, 14, -12] as const;

/** Returns a layer's colour, for text marks, hulls and links; it works on both themes. */
export function layerColor(layer: number, alpha = 1): string {
  const hue = HUES[layer % HUES.length] ?? 0;
  const step = LIGHT[Math.floor(layer / HUES.length) % LIGHT.length] ?? 0;
  return `hsl(${hue} 65% calc(var(--layer-light) + ${step}%) / ${alpha})`;
}

/** The same for a canvas, which knows no variables. */
export function layerColorOn(dark: boolean, layer: number, alpha = 1): string {
  const hue = HUES[layer % HUES.length] ?? 0;
  const step = LIGHT[Math.floor(layer / HUES.length) % LIGHT.length] ?? 0;
  return `hsl(${hue} 65% ${(dark ? 62 : 42) + step}% / ${alpha})`;
}
