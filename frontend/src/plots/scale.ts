// From a figure to a place on the scale of heat, from 0 (cold) to 1 (hot), and from there to a color.
// Lightness grows (or falls, on a light page) all the way, so that the scale works without hue.

import { effect, signal } from "@preact/signals";
import { timeText } from "../parts/figures";
import { count, percent } from "../story/shares";
import { theme, type Metric } from "../state";

export interface Tick {
  /** From 0 to 1. */
  readonly at: number;
  readonly text: string;
}

export interface Scale {
  /** The position of a figure, from 0 to 1. */
  readonly level: (figure: number) => number;
  readonly ticks: readonly Tick[];
}

/** Figures that add up over layers and kernels; those of 0 are not colored. */
export function adds(metric: Metric): boolean {
  return metric === "time" || metric === "flops" || metric === "bytes";
}

/** A figure with its unit. */
export function figureText(metric: Metric, figure: number): string {
  switch (metric) {
    case "time":
      return timeText(figure);
    case "flops":
      return `${count(figure)}FLOP`;
    case "bytes":
      return `${count(figure)}B`;
    case "peak":
      return percent(figure);
    default:
      return powers(figure);
  }
}

function powers(figure: number): string {
  if (figure === 0) return "0";
  const [digits = "", power = "0"] = figure.toExponential(1).split("e");
  return `${digits}·10${raised(Number(power))}`;
}

/** The scale for figures from `least` to `most`. Small parts of a whole stay apart by the square root,
 * errors by their logarithm; shares of a roof are as they are. */
export function scaleOf(metric: Metric, least: number, most: number): Scale {
  if (metric === "peak") {
    const level = (x: number) => Math.min(1, Math.max(0, x));
    return { level, ticks: [0, 0.25, 0.5, 0.75, 1].map((at) => ({ at, text: `${100 * at} %` })) };
  }
  if (metric === "error" || metric === "quantization") {
    const high = Math.ceil(Math.log10(Math.max(most, 1e-12)));
    const low = Math.min(high - 1, Math.max(high - 8, Math.floor(Math.log10(Math.max(least, 1e-12)))));
    const level = (x: number) => (x <= 0 ? 0 : Math.min(1, Math.max(0, (Math.log10(x) - low) / (high - low))));
    const step = Math.ceil((high - low) / 4);
    const ticks: Tick[] = [];
    for (let power = low; power <= high; power += step) ticks.push({ at: (power - low) / (high - low), text: `10${raised(power)}` });
    return { level, ticks };
  }
  const level = (x: number) => (most > 0 ? Math.sqrt(Math.min(1, Math.max(0, x / most))) : 0);
  return { level, ticks: [0, 0.5, 1].map((at) => ({ at, text: at ? figureText(metric, most * at * at) : "0" })) };
}

const RAISED: Readonly<Record<string, string>> = {
  "-": "⁻", "0": "⁰", "1": "¹", "2": "²", "3": "³", "4": "⁴", "5": "⁵", "6": "⁶", "7": "⁷", "8": "⁸", "9": "⁹",
};

/** A power of ten's exponent, raised. */
export function raised(power: number): string {
  return [...String(power)].map((c) => RAISED[c] ?? c).join("");
}

const STOPS = 6;
const COLORS = 33;

/** The colors from cold to hot as the theme has them, resolved, so that a canvas can use them. */
export const palette = signal<readonly string[]>([]);

export function colorAt(colors: readonly string[], level: number): string {
  return colors[Math.round(Math.min(1, Math.max(0, level)) * (colors.length - 1))] ?? "";
}

/** The text color that is readable on a color of the scale (`rgb(r g b)`): black or white. */
export function inkOn(color: string): string {
  const [r = 0, g = 0, b = 0] = (color.match(/\d+/g) ?? []).map((text) => {
    const c = Number(text) / 255;
    return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  });
  // Relative luminance (WCAG 2.1); at 0.179 both have a contrast of 4.6 to 1.
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.179 ? "#000000" : "#ffffff";
}

type Rgb = readonly [number, number, number];

function read(): string[] {
  const style = getComputedStyle(document.documentElement);
  const stops: Rgb[] = [];
  for (let n = 0; n < STOPS; n++) stops.push(rgb(style.getPropertyValue(`--heat-${n}`).trim()));
  return Array.from({ length: COLORS }, (_, n) => {
    const at = (n / (COLORS - 1)) * (STOPS - 1);
    const low = Math.min(STOPS - 2, Math.floor(at));
    const [a, b] = [stops[low] ?? [0, 0, 0], stops[low + 1] ?? [0, 0, 0]];
    const mixed = a.map((x, axis) => Math.round(x + ((b[axis] ?? 0) - x) * (at - low)));
    return `rgb(${mixed.join(" ")})`;
  });
}

function rgb(hex: string): Rgb {
  const digits = /^#([0-9a-f]{2})([0-9a-f]{2})([0-9a-f]{2})$/i.exec(hex);
  return digits ? [parseInt(digits[1] ?? "", 16), parseInt(digits[2] ?? "", 16), parseInt(digits[3] ?? "", 16)] : [128, 128, 128];
}

if (typeof document !== "undefined") {
  // After the theme has been applied to the page.
  const refresh = (): void => queueMicrotask(() => (palette.value = read()));
  effect(() => {
    void theme.value;
    refresh();
  });
  matchMedia("(prefers-color-scheme: light)").addEventListener("change", refresh);
  addEventListener("DOMContentLoaded", refresh);
  addEventListener("load", refresh);
}
