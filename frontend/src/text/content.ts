// The contents of a pane of text, line by line: each line's thing and layers, and the lines
// that a thing leads to. The rules are those of clew.trace (see thread.ts); nothing here draws.

import type { Asked, Build } from "../builds";
import { visible } from "../parts/names";
import type { Pane } from "../state";
import type { Reach, Positions } from "../thread";
import type { Ref } from "../refs";
import type { Code, KernelInfo, Links, Nodes, Overview, Source, Stage } from "../wire";

export type Language = "model" | "graph" | "loops" | "llvm" | "asm";

/** A line's relation to a thing: it serves more than the thing, belongs to it, or is it. */
export const WEAK = 1;
export const OWN = 2;
export const EXACT = 3;
export type Touched = ReadonlyMap<number, number>;

export interface Content {
  readonly text: string;
  readonly language: Language;
  refOf(line: number): Ref | null;
  /** The line of a thing in this text, else 0. */
  lineOf(ref: Ref): number;
  layersOf(line: number): readonly number[];
  /** Whether a line serves all that its kernel computes, as heads of loops do. */
  isShared(line: number): boolean;
  /** Layers whose output the expression on a line is. */
  marksOf(line: number): readonly number[];
  /** The pass that made what stands on a line, "" for none; `fresh` where it is the stage's own. */
  madeBy(line: number): { readonly name: string; readonly fresh: boolean; readonly label: boolean } | null;
  /** The lines that a reach has here, with how much. */
  touched(reach: Reach, focus: Ref | null): Touched;
}

const NONE: readonly number[] = [];
const NOTHING: Touched = new Map();

/** Returns a pane's contents, as far as they are loaded. */
export function contentOf(pane: Pane, build: Build): Asked<Content> {
  const overview = build.overview.value;
  if (overview.state !== "ready") return overview;
  if (pane.kind === "model") return map(build.model.value, (s) => modelContent(s, overview.value));
  if (pane.kind === "stage") return map(build.stage(pane.arg).value, (s) => stageContent(s, pane.arg, overview.value));
  const asked = build.links.value;
  const links = asked.state === "ready" ? asked.value : null;
  const level = pane.kind === "llvm" || pane.kind === "asm" ? pane.kind : "loops";
  return map(build.code(pane.arg).value, (c) => codeContent(c, level, overview.value, links));
}

export function modelContent(source: Source, overview: Overview): Content {
  return new ModelContent(source, overview);
}

export function stageContent(stage: Stage, index: number, overview: Overview): Content {
  return new StageContent(stage, index, overview);
}

export function codeContent(code: Code, level: "loops" | "llvm" | "asm", overview: Overview, links: Links | null): Content {
  return new CodeContent(code, level, overview.kernels[code.kernel], links?.layers ?? []);
}

function map<A, B>(asked: Asked<A>, made: (value: A) => B): Asked<B> {
  return asked.state === "ready" ? { state: "ready", value: made(asked.value) } : asked;
}

class ModelContent implements Content {
  readonly language = "model";
  readonly text: string;
  private readonly lines = new Map<number, number[]>();
  private readonly places: ReadonlyMap<string, number>;

  constructor(
    private readonly source: Source,
    private readonly overview: Overview,
  ) {
    this.text = visible(source.text.replace(/\n$/, ""));
    source.line_layers.forEach((layer, n) => {
      if (layer < 0) return;
      const known = this.lines.get(layer);
      if (known) known.push(n + 1);
      else this.lines.set(layer, [n + 1]);
    });
    this.places = new Map(overview.layers.map((layer, n) => [layer.name, n]));
  }

  refOf(line: number): Ref | null {
    const layer = this.overview.layers[this.source.line_layers[line - 1] ?? -1];
    return layer ? { kind: "layer", name: layer.name } : null;
  }

  lineOf(ref: Ref): number {
    if (ref.kind === "source") return ref.line;
    if (ref.kind !== "layer") return 0;
    return this.lines.get(this.places.get(ref.name) ?? -1)?.[0] ?? 0;
  }

  layersOf(line: number): readonly number[] {
    const layer = this.source.line_layers[line - 1] ?? -1;
    return layer < 0 ? NONE : [layer];
  }

  isShared(): boolean {
    return false;
  }

  marksOf(): readonly number[] {
    return NONE;
  }

  madeBy(): null {
    return null;
  }

  touched(reach: Reach, focus: Ref | null): Touched {
    const found = new Map<number, number>();
    for (const layer of reach.layers) for (const line of this.lines.get(layer) ?? []) found.set(line, OWN);
    const exact = focus ? this.lineOf(focus) : 0;
    if (exact) found.set(exact, EXACT);
    return found;
  }
}

class StageContent implements Content {
  readonly language = "graph";
  readonly text: string;
  private readonly nodes: Nodes;
  /** Places in the columns by line, and lines by a node's number. */
  private readonly at = new Map<number, number[]>();
  private readonly line = new Map<number, number>();

  constructor(
    stage: Stage,
    private readonly index: number,
    private readonly overview: Overview,
  ) {
    this.text = visible(stage.text.replace(/\n$/, ""));
    this.nodes = stage.nodes;
    this.nodes.line.forEach((line, place) => {
      const known = this.at.get(line);
      if (known) known.push(place);
      else this.at.set(line, [place]);
      const number = this.nodes.number[place];
      if (number !== undefined) this.line.set(number, line);
    });
  }

  refOf(line: number): Ref | null {
    const place = this.at.get(line)?.[0];
    const number = place === undefined ? undefined : this.nodes.number[place];
    return number === undefined ? null : { kind: "node", stage: this.index, number };
  }

  lineOf(ref: Ref): number {
    return ref.kind === "node" ? (this.line.get(ref.number) ?? 0) : 0;
  }

  layersOf(line: number): readonly number[] {
    return this.joined(line, this.nodes.layers);
  }

  isShared(): boolean {
    return false;
  }

  marksOf(line: number): readonly number[] {
    return this.joined(line, this.nodes.marks);
  }

  madeBy(line: number): { name: string; fresh: boolean; label: boolean } | null {
    const place = this.at.get(line)?.[0];
    const born = place === undefined ? 0 : (this.nodes.born[place] ?? 0);
    const name = this.overview.stages[born]?.name;
    if (!born || !name || place === undefined) return null;
    return { name, fresh: born === this.index, label: this.nodes.kind[place] !== "Var" };
  }

  touched(reach: Reach, focus: Ref | null): Touched {
    const found = new Map<number, number>();
    for (const number of reach.nodes[this.index] ?? []) {
      const line = this.line.get(number);
      if (line === undefined) continue;
      found.set(line, Math.max(found.get(line) ?? 0, this.isHead(line) ? WEAK : OWN));
    }
    const exact = focus ? this.lineOf(focus) : 0;
    if (exact) found.set(exact, EXACT);
    return found;
  }

  /** A function's head stands for all operators inside. */
  private isHead(line: number): boolean {
    return this.nodes.kind[this.at.get(line)?.[0] ?? -1] === "Function";
  }

  private joined(line: number, column: readonly (readonly number[])[]): readonly number[] {
    const places = this.at.get(line);
    if (!places) return NONE;
    if (places.length === 1) return column[places[0] ?? -1] ?? NONE;
    return [...new Set(places.flatMap((place) => column[place] ?? NONE))];
  }
}

class CodeContent implements Content {
  readonly text: string;
  private readonly loop: readonly number[];

  constructor(
    private readonly code: Code,
    readonly language: "loops" | "llvm" | "asm",
    private readonly kernel: KernelInfo | undefined,
    private readonly layers: readonly (readonly number[])[],
  ) {
    this.text = visible(code[language].join("\n"));
    this.loop =
      language === "loops" ? code.loops.map((_, n) => n + 1) : language === "llvm" ? code.llvm_loop : code.asm_loop;
  }

  refOf(line: number): Ref | null {
    if (line < 1 || line > this.loop.length) return null;
    const kind = this.language === "loops" ? "loop" : this.language;
    return { kind, kernel: this.code.kernel, line };
  }

  lineOf(ref: Ref): number {
    const kind = this.language === "loops" ? "loop" : this.language;
    return ref.kind === kind && ref.kernel === this.code.kernel ? ref.line : 0;
  }

  layersOf(line: number): readonly number[] {
    const loop = this.loop[line - 1] ?? 0;
    if (!loop) return NONE;
    const op = this.code.loop_op[loop - 1] ?? -1;
    const own = op < 0 ? undefined : this.layers[this.kernel?.numbers[op] ?? -1];
    return own?.length ? own : (this.kernel?.layers ?? NONE);
  }

  isShared(line: number): boolean {
    const loop = this.loop[line - 1] ?? 0;
    return (this.kernel?.ops.length ?? 0) > 1 && (this.code.loop_op[loop - 1] ?? -1) < 0;
  }

  marksOf(): readonly number[] {
    return NONE;
  }

  madeBy(): null {
    return null;
  }

  touched(reach: Reach, focus: Ref | null): Touched {
    const positions = reach.kernels.get(this.code.kernel);
    if (positions === undefined) return NOTHING;
    const how = reach.line ? this.near(reach.line.loop, positions) : loopStrengths(this.code, this.kernel, positions);
    const found = new Map<number, number>();
    this.loop.forEach((loop, n) => {
      const strength = loop ? (how[loop - 1] ?? 0) : 0;
      if (strength) found.set(n + 1, strength);
    });
    const exact = focus ? this.lineOf(focus) : 0;
    if (exact) {
      // Other lines of the same loop line belong to it; this one is the thing itself.
      for (const [line, strength] of found) if (strength === EXACT) found.set(line, OWN);
      found.set(exact, EXACT);
    }
    return found;
  }

  /** A line of code leads to its line of the nest; the rest of its operator is what stands around it. */
  private near(loop: number, positions: Positions): readonly number[] {
    const around = positions === null ? [] : loopStrengths(this.code, this.kernel, positions);
    return this.code.loops.map((_, n) => (n + 1 === loop ? EXACT : around[n] === OWN ? WEAK : 0));
  }
}

/**
 * Returns the relation of each line of a nest to operators: `Trace.forward` of the sources that the
 * operators are gives exactly those that are not 0.
 */
export function loopStrengths(code: Code, kernel: KernelInfo | undefined, positions: Positions): number[] {
  const numbers = kernel?.numbers ?? [];
  if (positions === null || positions.size === numbers.length) return code.loops.map(() => OWN);
  const wanted = new Set([...positions].map((position) => numbers[position]));
  return code.loop_op.map((op) => (op < 0 || op >= numbers.length ? WEAK : wanted.has(numbers[op]) ? OWN : 0));
}

/** Places to step through: the first line of each run of lines with the closest relation to a thing. */
export function placesOf(touched: Touched): number[] {
  const best = [...touched].filter(([, strength]) => strength >= OWN);
  const lines = (best.length ? best : [...touched]).map(([line]) => line).sort((a, b) => a - b);
  return lines.filter((line, n) => lines[n - 1] !== line - 1);
}

/** The layer that stands for a line: a focused one, if it has any. */
export function first(layers: readonly number[], wanted: ReadonlySet<number>): number {
  return layers.find((layer) => wanted.has(layer)) ?? layers[0] ?? 0;
}
