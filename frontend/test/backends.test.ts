// Regions on other backends: what the form reads, and what a region leads to.
import assert from "node:assert/strict";
import { test } from "node:test";
import { DEFAULTS, formOf, optionsOf, readPlace } from "../src/build/options";
import { ranked } from "../src/plots/ranking";
import { Thread, type CodeLines } from "../src/thread";
import type { Heat, Links, Overview } from "../src/wire";

test("place is first, auto, or layers by backend", () => {
  assert.deepEqual(readPlace(""), []);
  assert.deepEqual(readPlace(" auto "), ["auto"]);
  assert.deepEqual(readPlace("onnxruntime=conv1,block/*; openvino=fc"), ["onnxruntime=conv1,block/*", "openvino=fc"]);
  for (const wrong of ["conv1", "onnxruntime=", "onnxruntime= , ", "auto; first"]) assert.equal(typeof readPlace(wrong), "string", wrong);
});

test("backends and place come back from the form", () => {
  const options = { ...DEFAULTS, backends: ["openvino", "numpy"], place: ["openvino=a", "numpy=b,c"] };
  assert.deepEqual(optionsOf(formOf(options)), options);
});

const region = { index: 0, name: "add", backend: "numpy", call: 4, numbers: [3], layers: [1], ops: ["add"], distinct: 0, reads: [], results: [], copies: [] };
const kernel = { index: 0, name: "relu", call: 6, numbers: [5], layers: [0], ops: ["nn.relu"] };
const overview = {
  layers: [{ name: "r", op: "Relu" }, { name: "a", op: "Add" }],
  stages: [{ index: 0, changed: true }, { index: 1, changed: true }],
  kernels: [kernel], regions: [region],
} as unknown as Overview;
const links = {
  born: [0, 0, 0, 1, 1, 1, 1], last: [0, 0, 0, 1, 1, 1, 1], away: [], layers: [[], [0], [1], [1], [1], [0], [0]],
  stages: [{ old: [], new: [], same: [] }, { old: [1, 1, 2, 2], new: [5, 6, 3, 4], same: [1, 1, 1, 1] }],
} as unknown as Links;
const code: CodeLines = { loopOf: () => 0, opOf: () => -1 };

test("a region leads to its layers and to what its operators were made of, and to no kernel", () => {
  const reach = new Thread(overview, links).reach({ kind: "region", region: 0 }, code);
  assert.deepEqual([...reach.layers], [1]);
  assert.deepEqual(reach.nodes.map((nodes) => [...nodes].sort()), [[2], [3, 4]]);
  assert.equal(reach.kernels.size, 0);
  assert.equal(new Thread(overview, links).reach({ kind: "region", region: 7 }, code).layers.size, 0);
});

test("regions are ranked among kernels by their time", () => {
  const heat = { layers: [10, 90], kernels: [10], regions: [90], runs: [1] } as unknown as Heat;
  const rows = ranked(overview, heat, "kernels");
  assert.deepEqual(rows.map((row) => [row.title, row.figure]), [["add on numpy", 90], ["Relu", 10]]);
  assert.deepEqual(rows[0]?.ref, { kind: "region", region: 0 });
});
