// The theme: text is readable in both themes (WCAG 2.1, AA: 4.5 to 1 for text, 3 to 1 for marks and
// edges), and layers next to each other look different to all kinds of eyes.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { layerColorOn } from "../src/colors";
import { inkOn } from "../src/plots/scale";

type Rgb = readonly [number, number, number];

const css = readFileSync("src/styles/theme.css", "utf8");

function variables(selector: string): Map<string, string> {
  const at = css.indexOf(`${selector} {`);
  assert.ok(at >= 0, selector);
  const block = css.slice(at, css.indexOf("}", at));
  return new Map([...block.matchAll(/(--[\w-]+):\s*([^;]+);/g)].map((m) => [m[1] ?? "", m[2] ?? ""]));
}

const THEMES = {
  dark: variables(':root[data-theme="dark"]'),
  light: variables(':root[data-theme="light"]'),
};

/** Linear light of a color `#rrggbb` or `oklch(...)`. */
function linear(color: string): Rgb {
  const hex = /^#([0-9a-f]{6})$/.exec(color)?.[1];
  if (hex) {
    const channel = (n: number): number => {
      const c = parseInt(hex.slice(2 * n, 2 * n + 2), 16) / 255;
      return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
    };
    return [channel(0), channel(1), channel(2)];
  }
  const found = /^oklch\(([\d.]+)% ([\d.]+) ([\d.]+) \/ 1\)$/.exec(color);
  assert.ok(found, color);
  const [light, chroma, hue] = [Number(found[1]) / 100, Number(found[2]), (Number(found[3]) * Math.PI) / 180];
  return fromOklab(light, chroma * Math.cos(hue), chroma * Math.sin(hue));
}

/** Source: B. Ottosson, "A perceptual color space for image processing". */
function fromOklab(light: number, a: number, b: number): Rgb {
  const l = (light + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (light - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (light - 0.0894841775 * a - 1.291485548 * b) ** 3;
  return [
    4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
    -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
    -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s,
  ];
}

function toOklab([r, g, b]: Rgb): Rgb {
  const l = Math.cbrt(0.4122214708 * r + 0.5363325363 * g + 0.0514459929 * b);
  const m = Math.cbrt(0.2119034982 * r + 0.6806995451 * g + 0.1073969566 * b);
  const s = Math.cbrt(0.0883024619 * r + 0.2817188376 * g + 0.6299787005 * b);
  return [
    0.2104542553 * l + 0.793617785 * m - 0.0040720468 * s,
    1.9779984951 * l - 2.428592205 * m + 0.4505937099 * s,
    0.0259040371 * l + 0.7827717662 * m - 0.808675766 * s,
  ];
}

function contrast(a: Rgb, b: Rgb): number {
  const luminance = ([r, g, b]: Rgb): number => 0.2126 * r + 0.7152 * g + 0.0722 * b;
  const [x, y] = [luminance(a) + 0.05, luminance(b) + 0.05];
  return Math.max(x, y) / Math.min(x, y);
}

const SURFACES = ["back", "panel", "raised", "float"];
const MARKED = ["highlight", "highlight-weak", "selected", "found", "added", "removed"];
const TOKENS = ["keyword", "number", "string", "type", "comment", "name", "operator"].map((t) => `token-${t}`);

/** Pairs that meet on the page: writing, what it stands on, and the contrast that it needs. */
const PAIRS: [string, string, number][] = [
  ...SURFACES.flatMap((on) => ["text", "dim", "accent", "bad", "good", "hot"].map((w): [string, string, number] => [w, on, 4.5])),
  ...MARKED.map((on): [string, string, number] => ["text", on, 4.5]),
  ...["highlight-weak", "selected"].flatMap((on) => ["dim", "accent"].map((w): [string, string, number] => [w, on, 4.5])),
  ...["panel", "highlight-weak"].flatMap((on) => TOKENS.map((w): [string, string, number] => [w, on, 4.5])),
  ["on-accent", "accent", 4.5],
  ["bar", "panel", 3],
  ["bar", "raised", 3],
  ["edge", "panel", 3],
  ["edge", "float", 3],
  ["edge", "raised", 3],
];

for (const [theme, colors] of Object.entries(THEMES)) {
  test(`${theme}: what is written can be read`, () => {
    const of = (name: string): Rgb => linear(colors.get(`--${name}`) ?? assert.fail(name));
    for (const [writing, on, least] of PAIRS) {
      const found = contrast(of(writing), of(on));
      assert.ok(found >= least, `${writing} on ${on}: ${found.toFixed(2)} < ${least}`);
    }
  });

  test(`${theme}: a canvas has the colors of the style sheet`, () => {
    const written = `oklch(${parseFloat(colors.get("--layer-light") ?? "")}% ${colors.get("--layer-chroma")} `;
    assert.ok(layerColorOn(theme === "dark", 0).startsWith(written), written);
  });

  test(`${theme}: layers stand out, in colors that screens have`, () => {
    const panel = linear(colors.get("--panel") ?? "");
    for (let layer = 0; layer < 24; layer++) {
      const color = linear(layerColorOn(theme === "dark", layer));
      assert.ok(color.every((c) => c > -0.03 && c < 1.05), `layer ${layer} is outside of sRGB: ${color}`);
      assert.ok(contrast(color, panel) >= 3, `layer ${layer}: ${contrast(color, panel).toFixed(2)}`);
    }
  });

  test(`${theme}: neighboring layers differ for color-blind eyes`, () => {
    for (const [kind, see] of Object.entries(EYES)) {
      for (let layer = 0; layer < 24; layer++) {
        const [a, b] = [layer, layer + 1].map((n) => toOklab(see(linear(layerColorOn(theme === "dark", n)))));
        assert.ok(a && b);
        const distance = Math.hypot(a[0] - b[0], a[1] - b[1], a[2] - b[2]);
        assert.ok(distance > 0.1, `${kind}: layers ${layer} and ${layer + 1} are ${distance.toFixed(3)} apart`);
      }
    }
  });

  test(`${theme}: numbers can be read on all heats`, () => {
    const stops = [0, 1, 2, 3, 4, 5].map((n) => {
      const hex = colors.get(`--heat-${n}`) ?? "";
      return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
    });
    for (let level = 0; level <= 5; level += 1 / 16) {
      const low = Math.min(4, Math.floor(level));
      const mixed = [0, 1, 2].map((axis) => {
        const [a, b] = [stops[low]?.[axis] ?? 0, stops[low + 1]?.[axis] ?? 0];
        return Math.round(a + (b - a) * (level - low));
      });
      const ink = linear(inkOn(`rgb(${mixed.join(" ")})`));
      const on = linear(`#${mixed.map((c) => c.toString(16).padStart(2, "0")).join("")}`);
      assert.ok(contrast(ink, on) >= 4.5, `heat ${level}: ${contrast(ink, on).toFixed(2)}`);
    }
  });

  test(`${theme}: heat grows lighter or darker step by step`, () => {
    const steps = [0, 1, 2, 3, 4, 5].map((n) => toOklab(linear(colors.get(`--heat-${n}`) ?? ""))[0]);
    for (let n = 1; n < steps.length; n++) {
      const rise = (steps[n] ?? 0) - (steps[n - 1] ?? 0);
      assert.ok(theme === "dark" ? rise > 0.05 : rise < -0.03, `heat ${n}: ${rise.toFixed(3)}`);
    }
  });
}

/** What dichromats see. Source: Machado, Oliveira and Fernandes 2009, severity 1. */
const EYES: Record<string, (color: Rgb) => Rgb> = {
  all: (color) => color,
  protanopia: by([0.152286, 1.052583, -0.204868, 0.114503, 0.786281, 0.099216, -0.003882, -0.048116, 1.051998]),
  deuteranopia: by([0.367322, 0.860646, -0.227968, 0.280085, 0.672501, 0.047413, -0.01182, 0.04294, 0.968881]),
  tritanopia: by([1.255528, -0.076749, -0.178779, -0.078411, 0.930809, 0.147602, 0.004733, 0.691367, 0.3039]),
};

function by(m: readonly number[]): (color: Rgb) => Rgb {
  const row = (n: number, [r, g, b]: Rgb): number => clamp((m[n] ?? 0) * r + (m[n + 1] ?? 0) * g + (m[n + 2] ?? 0) * b);
  return (color) => [row(0, color), row(3, color), row(6, color)];
}

function clamp(x: number): number {
  return Math.min(1, Math.max(0, x));
}

test("the light theme is the same, chosen or by the system", () => {
  assert.deepEqual(variables(':root[data-theme="auto"]'), THEMES.light);
});
