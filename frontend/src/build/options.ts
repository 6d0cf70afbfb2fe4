// Converts between the options of a build and the form's fields.

import type { Options } from "../wire";

/** The setting of a pass: by the opt level, always, or never. */
export type PassWish = "auto" | "on" | "off";

export interface Form {
  readonly target: string;
  readonly precision: string;
  readonly optLevel: number;
  /** "" lets clew choose the number. */
  readonly threads: string;
  readonly fuse: boolean;
  readonly passes: ReadonlyMap<string, PassWish>;
  readonly shapes: string;
  readonly sizes: string;
  /** Names of backends, in the order in which they choose. */
  readonly backends: readonly string[];
  /** `first`, `auto`, or `backend=layer,...`, several with semicolons between. */
  readonly place: string;
  readonly keepF32: readonly string[];
  /** Names of the server's files to extend with. */
  readonly extend: readonly string[];
  /** Recorded steps by kernel. */
  readonly schedules: Readonly<Record<string, string>>;
}

export function formOf(options: Options): Form {
  return {
    target: options.target,
    precision: options.precision,
    optLevel: options.opt_level,
    threads: options.threads === null ? "" : String(options.threads),
    fuse: options.fuse,
    passes: new Map<string, PassWish>([
      ...options.disabled.map((name) => [name, "off"] as const),
      ...options.required.map((name) => [name, "on"] as const),
    ]),
    shapes: shapesText(options.shapes),
    sizes: sizesText(options.sizes),
    backends: options.backends,
    place: options.place.join("; "),
    keepF32: options.keep_f32,
    extend: options.extend,
    schedules: options.schedules,
  };
}

export const DEFAULTS: Options = {
  target: "cpu", threads: null, opt_level: 3, precision: "f32", fuse: true, disabled: [], required: [], keep_f32: [],
  extend: [], schedules: {}, shapes: {}, sizes: {}, backends: [], place: [],
};

/** Returns the options in a form, or its error. */
export function optionsOf(form: Form): Options | string {
  const shapes = readShapes(form.shapes);
  if (typeof shapes === "string") return shapes;
  const sizes = readSizes(form.sizes);
  if (typeof sizes === "string") return sizes;
  const place = readPlace(form.place);
  if (typeof place === "string") return place;
  const threads = form.threads.trim();
  if (threads && !/^[1-9]\d{0,3}$/.test(threads)) return `threads: ${threads} is not a number from 1 on`;
  const wished = (wish: PassWish): string[] => [...form.passes].filter(([, w]) => w === wish).map(([name]) => name);
  return {
    target: form.target,
    precision: form.precision,
    opt_level: form.optLevel,
    threads: threads ? Number(threads) : null,
    fuse: form.fuse,
    disabled: wished("off"),
    required: wished("on"),
    keep_f32: [...form.keepF32],
    extend: [...form.extend],
    schedules: { ...form.schedules },
    shapes,
    sizes,
    backends: [...form.backends],
    place,
  };
}

/** Reads `image=1x3x224x224 mask=1x8`; shapes may also use commas, as on the command line. */
export function readShapes(text: string): Record<string, number[]> | string {
  const shapes: Record<string, number[]> = {};
  for (const word of text.split(/[\s;]+/).filter(Boolean)) {
    const at = word.lastIndexOf("=");
    const name = word.slice(0, at);
    const sizes = word.slice(at + 1).split(/[x×,]/).filter((size, _, all) => size || all.length > 1);
    if (at <= 0) return `shapes: ${word} is not of the form input=1x3x224x224`;
    if (!sizes.every((size) => /^\d{1,9}$/.test(size))) return `shapes: ${word.slice(at + 1)} is not a shape such as 1x3x224x224`;
    shapes[name] = sizes.map(Number);
  }
  return shapes;
}

export function shapesText(shapes: Readonly<Record<string, readonly number[]>>): string {
  return Object.entries(shapes).map(([name, sizes]) => `${name}=${sizes.join("x")}`).join(" ");
}

/** Reads `seq=128 batch=1:8`: the sizes of free dimensions, by name, as on the command line. */
export function readSizes(text: string): Record<string, string> | string {
  const sizes: Record<string, string> = {};
  for (const word of text.split(/[\s;]+/).filter(Boolean)) {
    const [, name, given] = /^(.+)=([\d:,]+)$/.exec(word) ?? [];
    if (!name || !given) return `sizes: ${word} is not of the form seq=128`;
    sizes[name] = given;
  }
  return sizes;
}

export function sizesText(sizes: Readonly<Record<string, string>>): string {
  return Object.entries(sizes).map(([name, given]) => `${name}=${given}`).join(" ");
}

/** Reads `first`, `auto`, or `onnxruntime=conv1,block1/*; openvino=fc`: layers by backend. */
export function readPlace(text: string): string[] | string {
  const parts = text.split(";").map((part) => part.trim()).filter(Boolean);
  if (parts.length === 1 && (parts[0] === "first" || parts[0] === "auto")) return parts;
  for (const part of parts) {
    if (!/^[^=]+=.*[^\s,]/.test(part)) return `place: ${part} is not first, auto, or of the form backend=layer,...`;
  }
  return parts;
}

/** The options that differ from the defaults, in short, for titles of builds. */
export function optionWords(options: Options): string {
  const words = [options.precision];
  if (options.target !== "cpu") words.unshift(options.target);
  if (options.opt_level !== 3) words.push(`O${options.opt_level}`);
  if (!options.fuse) words.push("unfused");
  if (options.threads !== null) words.push(options.threads === 1 ? "1 thread" : `${options.threads} threads`);
  words.push(...options.disabled.map((name) => `−${name}`), ...options.required.map((name) => `+${name}`));
  words.push(...options.extend.map((file) => `+${file}`), ...Object.keys(options.schedules).map((name) => `schedule of ${name}`));
  const shapes = shapesText(options.shapes);
  if (shapes) words.push(shapes);
  const sizes = sizesText(options.sizes);
  if (sizes) words.push(sizes);
  if (options.backends.length) words.push(options.backends.join(" + "));
  if (options.place.length) words.push(`placed ${options.place.join("; ")}`);
  return words.join(", ");
}
