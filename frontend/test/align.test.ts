import assert from "node:assert/strict";
import { test } from "node:test";
import { Alignment, counterparts } from "../src/compare/align";
import { Thread } from "../src/thread";
import type { KernelInfo, Layer, LayerChange, Links, Overview, StageInfo } from "../src/wire";

const layer = (name: string): Layer => ({ name, op: "", group: [], fate: "alive", fate_text: "", kernels: [] });
const change = (a: number, b: number): LayerChange =>
  ({ a, b, how: "", kinds: [], sentences: [], a_ns: null, b_ns: null, error: null });

/** Two layers, a node each; both are operators of one kernel. */
function thread(): Thread {
  const stage = (index: number): StageInfo =>
    ({ index, name: "", summary: "", changed: index > 0, seconds: 0, nodes: 2, added: 0, removed: 0, rewritten: 0, remarks: 0 });
  const kernel = { index: 0, call: 5, ops: ["conv", "relu"], numbers: [2, 3], layers: [0, 1] } as unknown as KernelInfo;
  const overview = { layers: [layer("conv1"), layer("relu1")], stages: [stage(0), stage(1)], kernels: [kernel] };
  const links: Links = {
    born: [0, 0, 1, 1],
    last: [0, 0, 1, 1],
    away: [],
    layers: [[0], [1], [0], [1]],
    stages: [{ old: [], new: [], same: [] }, { old: [0, 1], new: [2, 3], same: [1, 1] }],
  };
  return new Thread(overview as unknown as Overview, links);
}

const code = { loopOf: (): number => 1, opOf: (): number => 1 };
const other = [layer("first"), layer("act"), layer("new")];

test("layers pair as the difference says, both ways", () => {
  const alignment = Alignment.of([change(0, 1), change(1, -1), change(-1, 0), change(2, 2)]);
  assert.equal(alignment.counterpart(0), 1);
  assert.equal(alignment.counterpart(1), null);
  assert.equal(alignment.counterpart(1, true), 0);
  assert.equal(alignment.turned.counterpart(1), 0);
  assert.equal(alignment.counterpart(0, true), null);
});

test("equal names pair until there is a difference", () => {
  const alignment = Alignment.named([layer("x"), layer("act")], other);
  assert.equal(alignment.counterpart(0), null);
  assert.equal(alignment.counterpart(1), 1);
});

test("a layer, a node, a kernel and a line stand for their layers' counterparts", () => {
  const alignment = Alignment.of([change(0, 0), change(1, 1)]);
  const names = (ref: Parameters<typeof counterparts>[0]): string[] =>
    counterparts(ref, thread(), code, alignment, other).map((r) => (r.kind === "layer" ? r.name : "?"));
  assert.deepEqual(names({ kind: "layer", name: "relu1" }), ["act"]);
  assert.deepEqual(names({ kind: "node", stage: 1, number: 2 }), ["first"]);
  assert.deepEqual(names({ kind: "kernel", kernel: 0 }).sort(), ["act", "first"]);
  assert.deepEqual(names({ kind: "asm", kernel: 0, line: 7 }), ["act"]);
  assert.deepEqual(names({ kind: "layer", name: "unknown" }), []);
});

test("a layer that the other build lacks leads nowhere", () => {
  assert.deepEqual(counterparts({ kind: "layer", name: "conv1" }, thread(), code, Alignment.of([change(0, -1)]), other), []);
});
