import assert from "node:assert/strict";
import { test } from "node:test";
import { foldEnds } from "../src/text/folds";

test("a function of graph IR folds with its parameters and its body", () => {
  const text = ["def @main(", "  %x: f32[4]", ") -> (f32[4],) {", "  %0 = fn(", "    %p: f32[4]", "  ) -> f32[4] {", "    %0 = nn.relu(%p)", "    return %0", "  }", "  return %0", "}"];
  const ends = foldEnds(text, "graph");
  assert.equal(ends[1], 10);
  assert.equal(ends[3], 10);
  assert.equal(ends[4], 8);
  assert.equal(ends[6], 8);
  assert.equal(ends[2], 0);
});

test("a function of LLVM folds as a whole, blocks by themselves", () => {
  const text = ['target triple = "x"', "define void @f() {", "entry:", "  br label %a", "a:", "  %v = add i64 0, 1", "  ret void", "}", "declare void @g()"];
  const ends = foldEnds(text, "llvm");
  assert.deepEqual([...ends].slice(1, 10), [0, 7, 4, 0, 7, 0, 0, 0, 0]);
});

test("loops fold by their depth", () => {
  const ends = foldEnds(["kernel k():", "  for i in 4:", "    for j in 2:", "      a = 1", "    b = 2", "  c = 3"], "loops");
  assert.deepEqual([...ends].slice(1, 7), [6, 5, 4, 0, 0, 0]);
});
