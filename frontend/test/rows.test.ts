import assert from "node:assert/strict";
import { test } from "node:test";
import { extentOf, gain, listed, UNCHANGED, type Order } from "../src/compare/rows";
import type { Diff, LayerChange } from "../src/wire";

const change = (a: number, b: number, more: Partial<LayerChange> = {}): LayerChange =>
  ({ a, b, how: "name", kinds: [], sentences: [], a_ns: null, b_ns: null, error: null, ...more });

const diff: Diff = {
  a: "a", b: "b", summary: [], a_wall_ns: null, b_wall_ns: null,
  kinds: { fusion: 1, time: 2, removed: 1 },
  layers: [
    change(0, 0, { kinds: ["time"], a_ns: 100, b_ns: 90 }),
    change(1, 1),
    change(2, -1, { kinds: ["removed", "time"], a_ns: 500 }),
    change(3, 2, { kinds: ["fusion"], a_ns: 10, b_ns: 40, error: 0.1 }),
  ],
};
const places = (order: Order, kinds: string[] = [], text = ""): number[] =>
  listed(diff, { kinds: new Set(kinds), order, text }, (c) => `layer${c.a}`).map((c) => c.a);

test("layers stand in the model's order, or by how much their time or values changed", () => {
  assert.deepEqual(places("model"), [0, 1, 2, 3]);
  assert.deepEqual(places("time"), [2, 3, 0, 1]);
  assert.deepEqual(places("error"), [3, 0, 1, 2]);
});

test("layers are filtered by kind and by name", () => {
  assert.deepEqual(places("model", ["time"]), [0, 2]);
  assert.deepEqual(places("model", ["fusion", UNCHANGED]), [1, 3]);
  assert.deepEqual(places("model", [], "LAYER3"), [3]);
});

test("a layer that a build lacks takes no time there", () => {
  assert.equal(gain(diff.layers[2] as LayerChange), -500);
  assert.equal(gain(diff.layers[1] as LayerChange), null);
});

test("what there is to show", () => {
  const extent = extentOf(diff);
  assert.deepEqual([extent.times, extent.errors, extent.largest], [true, true, 500]);
  assert.deepEqual(extent.kinds, [["time", 2], ["fusion", 1], ["removed", 1], [UNCHANGED, 1]]);
});
