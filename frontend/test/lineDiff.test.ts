import assert from "node:assert/strict";
import { test } from "node:test";
import { diffLines, diffWords, type Row } from "../src/compare/lineDiff";

/** Both texts, read back from the rows. */
function readBack(rows: readonly Row[], a: readonly string[], b: readonly string[]): void {
  assert.deepEqual(rows.filter((r) => r.a).map((r) => r.a), a.map((_, n) => n + 1));
  assert.deepEqual(rows.filter((r) => r.b).map((r) => r.b), b.map((_, n) => n + 1));
  for (const row of rows) {
    const left = a[row.a - 1];
    const right = b[row.b - 1];
    if (row.kind === "same") assert.equal(left, right);
    if (row.kind === "indented") assert.ok(left !== right && left?.trim() === right?.trim());
    if (row.kind === "changed") assert.notEqual(left?.trim(), right?.trim());
    if (row.kind === "removed") assert.equal(row.b, 0);
    if (row.kind === "added") assert.equal(row.a, 0);
  }
}

const kinds = (rows: readonly Row[]): string => rows.map((r) => r.kind[0]).join("");

test("equal texts have nothing but same lines", () => {
  const text = ["a", "b", "c"];
  assert.equal(kinds(diffLines(text, text)), "sss");
  assert.deepEqual(diffLines([], []), []);
});

test("a loop put around lines changes their blanks only", () => {
  const a = ["kernel k:", "  for i in 32:", "    y[i] = x[i]"];
  const b = ["kernel k:", "  for i.o in 2:", "    for i.i in 16:", "      y[i] = x[i]"];
  const rows = diffLines(a, b);
  readBack(rows, a, b);
  assert.equal(rows.at(-1)?.kind, "indented");
  assert.ok(rows.some((r) => r.kind === "changed"));
});

test("a changed line stands beside what it was, and its words are marked", () => {
  const rows = diffLines(["x", "for i in 32:", "y"], ["x", "parallel i in 32:", "y"]);
  assert.equal(kinds(rows), "scs");
  const words = diffWords("for i in 32:", "parallel i in 32:");
  assert.deepEqual(words.a, [{ text: "for", differs: true }, { text: " i in 32:", differs: false }]);
  assert.deepEqual(words.b, [{ text: "parallel", differs: true }, { text: " i in 32:", differs: false }]);
});

test("lines that share little are removed and added", () => {
  assert.equal(kinds(diffLines(["load a, b"], ["return"])), "ra");
});

test("random texts are read back from their rows, with the fewest edits", () => {
  let seed = 1;
  const next = (below: number): number => (seed = (seed * 48271) % 2147483647) % below;
  for (let round = 0; round < 400; round++) {
    const draw = (): string[] => Array.from({ length: next(14) }, () => "  ".repeat(next(2)) + "abcd"[next(4)]);
    const a = draw();
    const b = draw();
    const rows = diffLines(a, b);
    readBack(rows, a, b);
    const kept = rows.filter((r) => r.kind === "same" || r.kind === "indented").length;
    assert.equal(kept, longestCommon(a.map((l) => l.trim()), b.map((l) => l.trim())));
  }
});

test("long texts with little in common end in good time", () => {
  const a = Array.from({ length: 6000 }, (_, n) => `a${n}`);
  const b = Array.from({ length: 6000 }, (_, n) => `b${n}`);
  assert.equal(diffLines(a, b).length, 12000);
});

function longestCommon(a: readonly string[], b: readonly string[]): number {
  const table = Array.from({ length: a.length + 1 }, () => new Array<number>(b.length + 1).fill(0));
  a.forEach((x, i) => b.forEach((y, j) => {
    table[i + 1]![j + 1] = x === y ? table[i]![j]! + 1 : Math.max(table[i]![j + 1]!, table[i + 1]![j]!);
  }));
  return table[a.length]![b.length]!;
}
