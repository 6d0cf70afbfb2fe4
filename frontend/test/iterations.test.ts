import assert from "node:assert/strict";
import { test } from "node:test";
import { nearest, stepped, typed } from "../src/story/iterations";

const all = { total: 40, held: null };
const some = { total: 40, held: [0, 1, 2, 20, 39] };

test("steps lead from iteration to iteration and stop at the ends", () => {
  assert.deepEqual((["first", "previous", "next", "last"] as const).map((step) => stepped(all, 5, step)), [0, 4, 6, 39]);
  assert.equal(stepped(all, 39, "next"), 39);
  assert.equal(stepped(all, 0, "previous"), 0);
});

test("in a report steps lead to iterations that it has", () => {
  assert.deepEqual((["first", "previous", "next", "last"] as const).map((step) => stepped(some, 2, step)), [0, 1, 20, 39]);
  assert.equal(stepped(some, 39, "next"), 39);
  assert.equal(nearest(some, 30), 39);
  assert.equal(nearest(some, 12), 20);
});

test("a typed number counts from 1, and what is none is nothing", () => {
  assert.deepEqual(["3", " 40 ", "0", "-1", "x", "", "1e3", "2.5"].map(typed), [2, 39, null, null, null, null, null, null]);
  assert.equal(nearest(all, 1000), 39);
});
