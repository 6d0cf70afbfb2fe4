// Answers inside a report's own file: see src/clew/explorer/contents.py, which packs
// them, and report.py.

import type { Source as AnswerSource } from "./answering";
import { coded, Coded } from "./coded";
import { parse } from "./refs";
import type { Answers, BuildInfo, Code, Diff, ErrorInfo, Links, Overview, Part, Sentence, Source, Start, Story } from "./wire";

/** The file's contents: pieces of answers, and answers made of them. */
interface Held {
  readonly shared: readonly unknown[];
  readonly answers: Readonly<Record<string, unknown>>;
}

export class Report implements AnswerSource {
  readonly live = false;
  private readonly contents: Promise<Contents>;

  constructor(packed: string) {
    this.contents = unpack(packed.trim()).then((held) => new Contents(held));
  }

  async start(): Promise<Start> {
    return (await this.contents).find<Start>("start");
  }

  async get<K extends keyof Answers>(build: string, path: K | `${K}/${string}`): Promise<Answers[K]> {
    const contents = await this.contents;
    if (!contents.has(`${build}/${path}`) && path.startsWith("story/")) {
      return contents.nearestStory(build, path.slice("story/".length)) as Answers[K];
    }
    if (!contents.has(`${build}/${path}`) && path.startsWith("values/")) {
      throw coded("W004", "the report does not hold this value: a report with a run of the model has only values of layers in loops that are in memory", "clew explore shows all");
    }
    return contents.find<Answers[K]>(`${build}/${path}`);
  }

  async iterations(build: string, output: number, layer: string): Promise<readonly number[]> {
    return (await this.contents).iterations(build, output, layer);
  }

  async diff(a: string, b: string): Promise<Diff> {
    return (await this.contents).find<Diff>(`diff/${a}/${b}`);
  }

  build(): Promise<BuildInfo> {
    return Promise.reject(refusal());
  }

  act(): Promise<string> {
    return Promise.reject(refusal());
  }

  follow<T>(): Promise<T> {
    return Promise.reject(refusal());
  }

  async cancel(): Promise<void> {}
}

function refusal(): Coded {
  return coded("W005", "a report can neither compile nor measure", "use clew explore");
}

class Contents {
  private readonly pieces = new Map<number, unknown>();

  constructor(private readonly held: Held) {}

  has(path: string): boolean {
    return Object.hasOwn(this.held.answers, path);
  }

  find<T>(path: string): T {
    if (!this.has(path)) throw coded("W004", `the report does not hold ${path}`, "clew explore shows everything");
    const found = this.whole(this.held.answers[path]);
    if (isRefused(found)) throw new Coded(found.refused);
    return found as T;
  }

  /** The iterations of a layer's result that are held. */
  iterations(build: string, output: number, layer: string): number[] {
    const [before, after] = [`${build}/values/`, `/${output}/${layer}`];
    const held = Object.keys(this.held.answers).filter((path) => path.startsWith(before) && path.endsWith(after));
    const iterations = held.map((path) => path.slice(before.length, path.length - after.length)).filter((iteration) => /^\d+$/.test(iteration));
    return iterations.map(Number).sort((a, b) => a - b);
  }

  /** A story that is not held, told from the one that comes nearest: that of the first line of a
   * line's operator, of a node where it was made, or of the layer that a node or line is of. */
  nearestStory(build: string, text: string): Story {
    const ref = parse(text);
    switch (ref?.kind) {
      case "node":
        return this.find(`${build}/story/${this.nodeOrLayer(build, ref.number)}`);
      case "source": {
        const layer = this.find<Source>(`${build}/source`).line_layers[ref.line - 1] ?? -1;
        return this.find(`${build}/story/layer:${this.layerName(build, layer)}`);
      }
      case "loop":
      case "llvm":
      case "asm":
        return this.lineStory(build, ref.kernel, ref.kind, ref.line);
      default:
        return this.find(`${build}/story/${text}`);
    }
  }

  private nodeOrLayer(build: string, number: number): string {
    const links = this.find<Links>(`${build}/links`);
    const made = `node:${links.born[number] ?? 0}:${number}`;
    if (this.has(`${build}/story/${made}`)) return made;
    return `layer:${this.layerName(build, links.layers[number]?.[0] ?? -1)}`;
  }

  private layerName(build: string, layer: number): string {
    return this.find<Overview>(`${build}/overview`).layers[layer]?.name ?? "";
  }

  private lineStory(build: string, kernel: number, kind: "loop" | "llvm" | "asm", line: number): Story {
    const code = this.find<Code>(`${build}/code/${kernel}`);
    const loop = kind === "loop" ? line : ((kind === "llvm" ? code.llvm_loop : code.asm_loop)[line - 1] ?? 0);
    const first = code.loop_op.indexOf(loop ? (code.loop_op[loop - 1] ?? -1) : -1) + 1;
    const like = this.find<Story>(`${build}/story/${first ? `loop:${kernel}:${first}` : `kernel:${kernel}`}`);
    const about = `${kind}:${kernel}:${line}`;
    const title = (kind === "loop" ? code.loops : code[kind])[line - 1]?.trim() ?? "";
    const sentences = [sentence({ text: title, ref: about, code: true })];
    if (kind !== "loop" && loop) {
      const text = code.loops[loop - 1]?.trim() ?? "";
      sentences.push(sentence({ text: `line ${loop} of the loop nest: `, ref: "", code: false }, { text, ref: `loop:${kernel}:${loop}`, code: true }));
    }
    const own = { kind: "code", head: "code", ref: about, sentences };
    return { ...like, about, title, sections: [own, ...like.sections.slice(first ? 1 : 0)] };
  }

  /** A value with its pieces inserted; a piece is made once, and is the same object everywhere. */
  private whole(value: unknown): unknown {
    if (Array.isArray(value)) return value.map((v) => this.whole(v));
    if (typeof value !== "object" || value === null) return value;
    const entries = Object.entries(value);
    const [first] = entries;
    if (first?.[0] !== "$" || entries.length !== 1) {
      return Object.fromEntries(entries.map(([key, v]) => [key, this.whole(v)]));
    }
    if (typeof first[1] !== "number") {
      return { $: this.whole((first[1] as { $: unknown }).$) };
    }
    const place = first[1];
    if (!this.pieces.has(place)) this.pieces.set(place, this.whole(this.held.shared[place]));
    return this.pieces.get(place);
  }
}

function sentence(...parts: Part[]): Sentence {
  return { parts, level: 0 };
}

function isRefused(value: unknown): value is { refused: ErrorInfo } {
  return typeof value === "object" && value !== null && "refused" in value;
}

async function unpack(packed: string): Promise<Held> {
  const bytes = Uint8Array.from(atob(packed), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text()) as Held;
}
