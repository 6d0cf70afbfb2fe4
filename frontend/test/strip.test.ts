import assert from "node:assert/strict";
import { test } from "node:test";
import { linksBetween, type Spot } from "../src/panes/links";
import { count, time } from "../src/panes/table";
import { duration, short, touchedStages } from "../src/strip/frames";
import { NOTHING } from "../src/thread";

test("stages touch a thing where its nodes are others than before", () => {
  const [a, b, c] = [new Set([1, 2]), new Set([1, 2]), new Set([1, 5])];
  assert.deepEqual([...touchedStages({ ...NOTHING, nodes: [a, a, b, c] })], [3]);
});

test("figures are short", () => {
  assert.equal(short(9999), "9999");
  assert.equal(short(15934), "15.9 k");
  assert.equal(short(1_234_567), "1.23 M");
  assert.equal(duration(0.00001), "0 ms");
  assert.equal(duration(0.0244), "24 ms");
  assert.equal(duration(4.12), "4.1 s");
  assert.equal(time(950), "950 ns");
  assert.equal(time(12_345), "12.3 µs");
  assert.equal(count(231_211_008), "231 M");
  assert.equal(count(0), "0");
});

test("links join spots that have a layer in common, the strongest first, and no more than asked", () => {
  const spot = (layers: number[], strength: number): Spot => ({ left: 0, right: 1, top: 0, bottom: 1, layers, strength });
  const left = [spot([1], 2), spot([2], 1)];
  const right = [spot([1, 2], 3), spot([3], 2)];
  const all = linksBetween(left, right, 10);
  assert.deepEqual(all.links.map((link) => link.layer), [1, 2]);
  assert.equal(linksBetween(left, right, 1).left, 1);
});
