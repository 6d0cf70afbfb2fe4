// Answers that a report carries inside its own file: see src/clew/explorer/contents.py, which packs
// them, and report.py.

import { coded, Coded, type Source } from "./source";
import { parse } from "./refs";
import type { Answers, BuildInfo, Code, Diff, ErrorInfo, Links, Start, Story } from "./wire";

/** What the file holds: pieces of answers, and answers made of them. */
interface Held {
  readonly shared: readonly unknown[];
  readonly answers: Readonly<Record<string, unknown>>;
}

export class Report implements Source {
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
    return contents.find<Answers[K]>(`${build}/${path}`);
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

  /** The story of what comes nearest: a line's is that of the first line of its operator, a node's
   * that of the node where it was made. */
  nearestStory(build: string, text: string): Story {
    const ref = parse(text);
    let path = "";
    if (ref?.kind === "node") {
      path = `node:${this.find<Links>(`${build}/links`).born[ref.number] ?? 0}:${ref.number}`;
    } else if (ref?.kind === "loop" || ref?.kind === "llvm" || ref?.kind === "asm") {
      const code = this.find<Code>(`${build}/code/${ref.kernel}`);
      const loops = { loop: null, llvm: code.llvm_loop, asm: code.asm_loop }[ref.kind];
      const loop = loops ? (loops[ref.line - 1] ?? 0) : ref.line;
      const first = code.loop_op.indexOf(loop ? (code.loop_op[loop - 1] ?? -1) : -1);
      path = first < 0 ? `kernel:${ref.kernel}` : `loop:${ref.kernel}:${first + 1}`;
    }
    return this.find<Story>(`${build}/story/${path || text}`);
  }

  /** A value with its pieces put in; a piece is made once, and is the same object everywhere. */
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

function isRefused(value: unknown): value is { refused: ErrorInfo } {
  return typeof value === "object" && value !== null && "refused" in value;
}

async function unpack(packed: string): Promise<Held> {
  const bytes = Uint8Array.from(atob(packed), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text()) as Held;
}
