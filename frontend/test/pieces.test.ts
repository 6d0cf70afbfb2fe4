// The inside of a region: pieces of work on a timeline, and the search in its lines.
import assert from "node:assert/strict";
import { test } from "node:test";
import { drawn } from "../src/plots/timeline";
import { alike, amounts, endOf, linesWith, piecesOf } from "../src/story/pieces";
import type { RegionDetails, RegionTrack } from "../src/wire";

const track: RegionTrack = {
  name: "load", total: 5, begins: [0, 4, 6, 100], ends: [4, 6, 8, 140], counts: [1, 1, 1, 2], busy: [4, 2, 2, 30],
  waited: [0, 0, 0, 92], waited_for: ["", "", "", "dispatch"], texts: ["0: a", "1: b", "2: c", "3: d"], layers: [[0], [0], [1], [1]],
};
const details: RegionDetails = {
  summary: "", tables: [], unit: "cycles", tracks: [track], lines_are: "instructions", total_lines: 3,
  lines: ["0: load inp", "1: gemm", "2: load wgt"], line_layers: [[0], [1], [1]],
};

test("pieces have what the server tells of them, in its unit", () => {
  const last = piecesOf(track)[3];
  assert.deepEqual([last?.start_ns, last?.ns, last?.busy, last?.waited, last?.waitedFor, last?.count], [100, 40, 30, 92, "dispatch", 2]);
  assert.equal(endOf(details), 140);
  assert.deepEqual(amounts(details), { total: 5, joined: true });
});

test("narrow pieces are drawn together only with those of the same layers", () => {
  const pieces = piecesOf(track);
  const apart = drawn(pieces, { from: 0, to: 1000 }, 100, alike);
  assert.deepEqual(apart.map((d) => [d.count, d.first.layers[0]]), [[2, 0], [1, 1], [1, 1]]);
  assert.deepEqual(drawn(pieces, { from: 0, to: 1000 }, 100).map((d) => d.count), [3, 1]);
});

test("lines are found by words of their text and by the names of layers", () => {
  const name = (layer: number) => ["conv1", "conv2"][layer] ?? "";
  assert.deepEqual(linesWith(details, "", name), [0, 1, 2]);
  assert.deepEqual(linesWith(details, "LOAD conv2", name), [2]);
  assert.deepEqual(linesWith(details, "store", name), []);
});
