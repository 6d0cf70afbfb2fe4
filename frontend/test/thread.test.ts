// The page follows a thing to its counterparts as clew's own trace does. What the trace says comes
// from tools/thread_truth.py: CLEW_TRUTH names the file; without it there is nothing to compare.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { parse, type Ref } from "../src/refs";
import { EXACT, placesOf, codeContent, modelContent, stageContent, type Content } from "../src/text/content";
import { Thread, union, type CodeLines } from "../src/thread";
import type { Code, Links, Overview, Source, Stage } from "../src/wire";

interface Reached {
  readonly ref: string;
  readonly layers: readonly number[];
  readonly nodes: readonly (readonly number[])[];
  readonly kernels: readonly number[];
  readonly loops: readonly (readonly [number, number])[];
  readonly llvm: readonly (readonly [number, number])[];
  readonly asm: readonly (readonly [number, number])[];
}

interface Truth {
  readonly overview: Overview;
  readonly links: Links;
  readonly source: Source;
  readonly codes: readonly Code[];
  readonly stages: readonly Stage[];
  readonly reaches: readonly Reached[];
}

const LEVELS = ["loops", "llvm", "asm"] as const;
const file = process.env["CLEW_TRUTH"];
const skip = file ? false : "CLEW_TRUTH names no file: pytest tests/explorer/test_thread.py does";
const truth = file ? (JSON.parse(readFileSync(file, "utf8")) as Truth) : null;

function codeLines({ codes }: Truth): CodeLines {
  return {
    loopOf(ref) {
      if (ref.kind === "loop") return ref.line;
      if (ref.kind !== "llvm" && ref.kind !== "asm") return 0;
      const code = codes[ref.kernel];
      return (ref.kind === "llvm" ? code?.llvm_loop : code?.asm_loop)?.[ref.line - 1] ?? 0;
    },
    opOf: (kernel, loop) => codes[kernel]?.loop_op[loop - 1] ?? -1,
  };
}

const ordered = (numbers: Iterable<number>) => [...numbers].sort((a, b) => a - b);
const isLine = (ref: Ref) => ref.kind === "loop" || ref.kind === "llvm" || ref.kind === "asm";

function walked(each: (reached: Reached, ref: Ref, thread: Thread, all: Truth, lines: CodeLines) => void): void {
  assert.ok(truth);
  const thread = new Thread(truth.overview, truth.links);
  const lines = codeLines(truth);
  assert.ok(truth.reaches.length > 10);
  for (const reached of truth.reaches) {
    const ref = parse(reached.ref);
    assert.ok(ref, reached.ref);
    each(reached, ref, thread, truth, lines);
  }
}

test("nodes, layers and kernels are those of the trace", { skip }, () => {
  walked((reached, ref, thread, _, lines) => {
    const found = thread.reach(ref, lines);
    assert.deepEqual(found.nodes.map(ordered), reached.nodes, reached.ref);
    assert.deepEqual(ordered(found.layers), reached.layers, reached.ref);
    assert.deepEqual(ordered(found.kernels.keys()), reached.kernels, reached.ref);
  });
});

test("lines of code are those of the trace", { skip }, () => {
  walked((reached, ref, thread, all, lines) => {
    const found = thread.reach(ref, lines);
    for (const level of LEVELS) {
      const own = ref.kind === (level === "loops" ? "loop" : level);
      for (const code of all.codes) {
        const shown = codeContent(code, level, all.overview, all.links);
        const touched = shown.touched(found, ref);
        // Of a line the exact counterparts are meant; around them stands the rest of its operator.
        const seen = isLine(ref) ? [...touched].filter(([, how]) => how === EXACT).map(([line]) => line) : touched.keys();
        const right = reached[level].filter(([kernel]) => kernel === code.kernel).map(([, line]) => line);
        const expected = own && "kernel" in ref && ref.kernel === code.kernel && "line" in ref ? [ref.line] : right;
        assert.deepEqual(ordered(seen), ordered(expected), `${reached.ref} in ${level} of kernel ${code.kernel}`);
      }
    }
  });
});

test("lines of graph IR are those of the nodes", { skip }, () => {
  walked((reached, ref, thread, all, lines) => {
    const found = thread.reach(ref, lines);
    all.stages.forEach((stage, n) => {
      const touched = stageContent(stage, n, all.overview).touched(found, ref);
      const line = new Map(stage.nodes.number.map((number, place) => [number, stage.nodes.line[place] ?? 0]));
      const right = new Set((reached.nodes[n] ?? []).flatMap((number) => line.get(number) ?? []));
      assert.deepEqual(ordered(touched.keys()), ordered(right), `${reached.ref} at stage ${n}`);
    });
    const model = modelContent(all.source, all.overview);
    const layers = new Set([...model.touched(found, ref).keys()].flatMap((at) => model.layersOf(at)));
    const shown = new Set(all.source.line_layers);
    assert.deepEqual(ordered(layers), reached.layers.filter((layer) => shown.has(layer)), reached.ref);
  });
});

test("a line's ref leads back to the line", { skip }, () => {
  assert.ok(truth);
  const { overview, links, codes, stages, source } = truth;
  const contents: Content[] = [
    modelContent(source, overview),
    ...stages.map((stage, n) => stageContent(stage, n, overview)),
    ...codes.flatMap((code) => LEVELS.map((level) => codeContent(code, level, overview, links))),
  ];
  for (const content of contents) {
    const total = content.text.split("\n").length;
    for (let line = 1; line <= total; line++) {
      const ref = content.refOf(line);
      if (!ref) continue;
      const back = content.lineOf(ref);
      // A layer may have several lines, and leads to the first.
      assert.ok(content.language === "model" ? back > 0 && back <= line : back === line, `${content.language} line ${line}`);
    }
  }
});

test("places are runs of lines, those of one's own first", () => {
  assert.deepEqual(placesOf(new Map([[3, 2], [4, 2], [5, 1], [9, 3]])), [3, 9]);
  assert.deepEqual(placesOf(new Map([[7, 1], [8, 1], [20, 1]])), [7, 20]);
  assert.deepEqual(placesOf(new Map()), []);
});

test("a union has all that its parts have", () => {
  const one = { layers: new Set([1]), nodes: [new Set([1])], kernels: new Map([[0, new Set([1])]]), line: null };
  const other = { layers: new Set([2]), nodes: [new Set([5])], kernels: new Map([[0, new Set([2])], [3, null]]), line: null };
  const both = union([one, other]);
  assert.deepEqual(ordered(both.layers), [1, 2]);
  assert.deepEqual(ordered(both.nodes[0] ?? []), [1, 5]);
  assert.deepEqual([...both.kernels], [[0, new Set([1, 2])], [3, null]]);
});
