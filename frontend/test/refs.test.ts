import assert from "node:assert/strict";
import { test } from "node:test";
import { format, parse, same, type Ref } from "../src/refs";

const REFS: readonly [string, Ref][] = [
  ["layer:conv1", { kind: "layer", name: "conv1" }],
  ["layer:/encoder/layer.0/MatMul:2", { kind: "layer", name: "/encoder/layer.0/MatMul:2" }],
  ["layer:<img src=x onerror=alert(1)>", { kind: "layer", name: "<img src=x onerror=alert(1)>" }],
  ["node:3:120", { kind: "node", stage: 3, number: 120 }],
  ["kernel:4", { kind: "kernel", kernel: 4 }],
  ["region:0", { kind: "region", region: 0 }],
  ["loop:4:12", { kind: "loop", kernel: 4, line: 12 }],
  ["llvm:4:30", { kind: "llvm", kernel: 4, line: 30 }],
  ["asm:4:7", { kind: "asm", kernel: 4, line: 7 }],
  ["stage:3", { kind: "stage", stage: 3 }],
  ["source:17", { kind: "source", line: 17 }],
];

test("refs are read as they are written", () => {
  for (const [text, ref] of REFS) {
    assert.deepEqual(parse(text), ref);
    assert.equal(format(ref), text);
  }
});

test("what is no ref reads as none", () => {
  for (const text of ["", "layer", "layer:", "node:1", "node:1:2:3", "kernel:-1", "kernel:1:2", "loop:1", "asm:1:x", "stage:", "other:1", "kernel:1e3", "kernel:99999999999"]) {
    assert.equal(parse(text), null, text);
  }
});

test("the same thing of another build is another thing", () => {
  const ref = parse("kernel:4");
  assert.ok(ref);
  assert.ok(same({ build: "a", ref }, { build: "a", ref: { kind: "kernel", kernel: 4 } }));
  assert.ok(!same({ build: "a", ref }, { build: "b", ref }));
  assert.ok(!same({ build: "a", ref }, null));
  assert.ok(same(null, null));
});
