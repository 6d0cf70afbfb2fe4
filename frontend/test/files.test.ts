import assert from "node:assert/strict";
import { test } from "node:test";
import { checked } from "../src/build/files";
import { formOf, optionsOf, readShapes, readSizes, DEFAULTS } from "../src/build/options";
import { retargeted } from "../src/build/retarget";
import { begin, insert, move, readCall, redo, remove, replace, undo, write } from "../src/schedule/edit";
import type { Overview } from "../src/wire";

const SUFFIXES = [".onnx", ".txt"]; // as the server sends them
const file = (name: string, size = 10) => ({ name, size });

function code(files: { name: string; size: number }[], most = 100): string {
  const found = checked(files, SUFFIXES, most);
  return "error" in found ? found.error.code : found.files.map((f) => f.name).join(" ");
}

test("one model is taken, with the files of its weights behind it", () => {
  assert.equal(code([file("m.ONNX")]), "m.ONNX");
  assert.equal(code([file("m.onnx.data"), file("m.onnx")]), "m.onnx m.onnx.data");
  assert.equal(code([file("a.png")]), "a.png");
  assert.equal(code([]), "W010");
  assert.equal(code([file("a.onnx"), file("b.txt")]), "W011");
  assert.equal(code([file("a.onnx", 0)]), "W014");
});

test("a file that has no model's suffix is asked about, by its first bytes", () => {
  const asked = (...names: string[]) => {
    const found = checked(names.map((name) => file(name, 1000)), SUFFIXES, 100);
    return "error" in found ? found.error.code : [found.asked, found.files.map((f) => f.name).join(" ")];
  };
  assert.deepEqual(asked("net.tflite"), [true, "net.tflite"], "its size does not matter");
  assert.deepEqual(asked("net.h5", "notes.md"), [true, "net.h5"]);
  assert.deepEqual(asked("net.onnx", "net.h5"), "W013");
});

test("what is too large is refused before it is sent", () => {
  assert.equal(code([file("a.onnx", 101)]), "W013");
  assert.equal(code([file("a.onnx", 60), file("w.bin", 60)]), "W013");
});

test("shapes are read as people write them", () => {
  assert.deepEqual(readShapes("x=1x3x224x224; mask=1,8"), { x: [1, 3, 224, 224], mask: [1, 8] });
  assert.deepEqual(readShapes("a=b=2"), { "a=b": [2] });
  assert.deepEqual(readShapes("scalar="), { scalar: [] });
  assert.deepEqual(readShapes("  "), {});
  assert.match(String(readShapes("1x3")), /not of the form/);
  assert.match(String(readShapes("x=1xNx3")), /not a shape/);
});

test("sizes are read as on the command line", () => {
  assert.deepEqual(readSizes("seq=128; batch=1:8,4"), { seq: "128", batch: "1:8,4" });
  assert.deepEqual(readSizes(" "), {});
  assert.match(String(readSizes("seq")), /not of the form/);
  assert.match(String(readSizes("seq=x")), /not of the form/);
});

test("options survive the form", () => {
  const options = { ...DEFAULTS, threads: 2, disabled: ["FuseOps"], required: ["SelectConvAlgorithm"], shapes: { x: [1, 2] }, sizes: { n: "1:9,4" }, precision: "bf16" };
  assert.deepEqual(optionsOf(formOf(options)), options);
  assert.match(String(optionsOf({ ...formOf(DEFAULTS), threads: "0" })), /not a number/);
  assert.match(String(optionsOf({ ...formOf(DEFAULTS), sizes: "seq" })), /not of the form/);
});

test("steps are replaced, put in, moved, removed, and all of it is undone", () => {
  let edit = begin(["a()", "b()"]);
  edit = replace(edit, 0, "c()\nd()");
  edit = move(edit, 2, -1);
  edit = insert(edit, 0, "e()");
  edit = remove(edit, 1);
  assert.deepEqual(edit.steps, ["e()", "b()", "d()"]);
  edit = undo(undo(undo(undo(edit))));
  assert.deepEqual(edit.steps, ["a()", "b()"]);
  assert.equal(undo(edit), edit);
  assert.deepEqual(redo(redo(edit)).steps, ["c()", "b()", "d()"]);
  assert.equal(replace(edit, 0, "a()"), edit, "no change is no step back");
  assert.equal(move(edit, 0, -1), edit);
  assert.deepEqual(write(edit, " x()\n\n y() ").steps, ["x()", "y()"]);
  assert.deepEqual(redo(write(undo(edit), "z()")).steps, ["z()"]);
});

test("a step is read in parts", () => {
  assert.deepEqual(readCall("reorder(order=('a.i', 'b'))"), { name: "reorder", values: [{ name: "order", value: "a.i, b" }] });
  const split = readCall("split(loop='x.i', factor=16, tail='peel')");
  assert.deepEqual(split.values.map((v) => v.value), ["x.i", "16", "peel"]);
  assert.deepEqual(readCall("import os"), { name: "import os", values: [] });
});

test("panes turn to another build: stages by name, kernels by layers", () => {
  const overview = (stages: string[], kernels: number[][]): Overview =>
    ({
      stages: stages.map((name) => ({ name })),
      layers: [{ name: "conv" }, { name: "relu" }, { name: "fc" }],
      kernels: kernels.map((layers) => ({ layers })),
    }) as unknown as Overview;
  const a = overview(["import", "Fuse", "Place"], [[0, 1], [2]]);
  const b = overview(["import", "Cast", "Fuse", "Place", "Last"], [[0], [1], [2]]);
  const pane = { key: 1, build: "a", kind: "stage", arg: 1, view: "" } as const;
  const [stage, last, loops, other] = retargeted(
    [pane, { ...pane, arg: 2 }, { ...pane, kind: "loops", arg: 1, at: 3 }, { ...pane, build: "z" }], "a", "b", a, b,
  );
  assert.deepEqual([stage?.build, stage?.arg], ["b", 2]);
  assert.equal(last?.arg, 4);
  assert.deepEqual([loops?.arg, loops?.at], [2, undefined]);
  assert.deepEqual([other?.build, other?.arg], ["z", 1]);
});
