// Colors of the page for canvases, which have no CSS variables, and the coloring of each thing.

export interface Look {
  readonly dark: boolean;
  readonly back: string;
  readonly panel: string;
  readonly raised: string;
  readonly line: string;
  readonly text: string;
  readonly dim: string;
  readonly accent: string;
  readonly hot: string;
  readonly good: string;
  readonly selected: string;
}

export function readLook(): Look {
  const style = getComputedStyle(document.documentElement);
  const of = (name: string) => style.getPropertyValue(`--${name}`).trim();
  return {
    dark: isDark(of("back")),
    back: of("back"), panel: of("panel"), raised: of("raised"), line: of("line"), text: of("text"), dim: of("dim"),
    accent: of("accent"), hot: of("hot"), good: of("good"), selected: of("selected"),
  };
}

function isDark(color: string): boolean {
  const found = /^#(..)(..)(..)$/.exec(color);
  if (!found) return true;
  const [r, g, b] = found.slice(1).map((part) => parseInt(part, 16)) as [number, number, number];
  return 0.3 * r + 0.6 * g + 0.1 * b < 128;
}

/** A color of the page for a canvas, with CSS variables resolved. */
export function onCanvas(color: string): string {
  if (!color.includes("var(")) return color;
  const style = getComputedStyle(document.documentElement);
  return color.replace(/var\((--[\w-]+)\)/g, (_, name: string) => style.getPropertyValue(name).trim());
}
