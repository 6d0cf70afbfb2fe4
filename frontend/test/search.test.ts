// Search: what matches, what comes first, and how long a key press takes on a large model.

import assert from "node:assert/strict";
import { test } from "node:test";
import { part, search, type Item } from "../src/search/corpus";
import { parseQuery, type Kind } from "../src/search/query";
import { EXACT, marks, NONE, PREFIX, rank, span, SUBSTRING, WORD } from "../src/search/rank";

function item(kind: Kind, text: string, detail = "", ref = "kernel:0"): Item {
  return { kind, text, detail, ref };
}

function texts(items: readonly Item[], query: string): string[] {
  return search([part(items)], parseQuery(query)).flatMap((group) => group.items.map((found) => found.text));
}

test("a text is ranked by where it holds the query", () => {
  assert.equal(rank("conv", "conv"), EXACT);
  assert.equal(rank("conv1", "conv"), PREFIX);
  assert.equal(rank("block/conv", "conv"), WORD);
  assert.equal(rank("preconv/conv", "conv"), WORD);
  assert.equal(rank("preconv", "conv"), SUBSTRING);
  assert.equal(rank("relu", "conv"), NONE);
});

test("results come exact, prefix, word, substring, scattered, fuzzy", () => {
  const layers = ["preconv", "my conv", "conv1", "conv", "c_o_n_v"].map((name) => item("layer", name));
  assert.deepEqual(texts(layers, "conv"), ["conv", "conv1", "my conv", "preconv", "c_o_n_v"]);
  const words = [item("layer", "add_conv_relu"), item("layer", "relu of conv")];
  assert.deepEqual(texts(words, "conv relu"), ["relu of conv", "add_conv_relu"], "all words, in any order");
  assert.deepEqual(texts([item("layer", "a.b"), item("layer", "axb")], "a.b"), ["a.b"], "no patterns");
});

test("a layer is found by its type, after those found by name", () => {
  const items = [item("layer", "n4", "Conv"), item("layer", "n5", "Relu"), item("layer", "conv", "Relu")];
  assert.deepEqual(texts(items, "Conv"), ["conv", "n4"]);
  assert.deepEqual(texts(items, "op:conv"), ["n4"]);
});

test("groups stand in the order of their best match", () => {
  const items = [item("layer", "preconv"), item("operator", "conv")];
  const found = search([part(items)], parseQuery("conv"));
  assert.deepEqual(found.map((group) => group.kind), ["operator", "layer"]);
});

test("a filter keeps one kind, alone it lists all of them", () => {
  const items = [item("layer", "f32"), item("dtype", "f32"), item("shape", "f32[1, 64, 56, 56]")];
  assert.deepEqual(texts(items, "dtype:f3"), ["f32"]);
  assert.deepEqual(texts(items, "layer:"), ["f32"]);
  assert.deepEqual(texts(items, "shape:1x64x56"), ["f32[1, 64, 56, 56]"]);
  assert.deepEqual(texts(items, "shape:64,56"), ["f32[1, 64, 56, 56]"]);
});

test("what is no filter is looked for as it stands", () => {
  assert.deepEqual(texts([item("layer", "block:0"), item("layer", "block")], "block:0"), ["block:0"]);
});

test("fuzzy matches are near each other", () => {
  assert.equal(span("split_image_conv2d", "spim"), 8);
  assert.equal(span("s---------p---------------i----m", "spim"), 0);
  assert.equal(span("abc", "ab"), 0, "too short to guess");
});

test("marks are what matched: in one piece at a word, else words, else characters", () => {
  const of = (text: string, query: string): string[] => {
    const { needle, words } = parseQuery(query);
    return marks(text, needle, words).map(([start, end]) => text.slice(start, end));
  };
  assert.deepEqual(of("preconv/Conv", "conv"), ["Conv"]);
  assert.deepEqual(of("relu of conv", "conv relu"), ["relu", "conv"]);
  assert.deepEqual(of("split_image", "spim"), ["sp", "im"]);
  assert.deepEqual(of("relu", "conv"), []);
  // Lower case of some letters is longer: such a text is shown without marks.
  assert.deepEqual(of("İstanbul conv", "conv"), []);
});

test("a key press on a model of 10,000 layers", () => {
  const items: Item[] = [];
  for (let n = 0; n < 10_000; n++) {
    items.push(item("layer", `/encoder/layer.${n % 97}/block.${n}/conv/Conv`, "Conv", `layer:${n}`));
    items.push(item("kernel", `conv2d_add_relu_${n}`, "conv_direct"));
    items.push(item("shape", `f32[1, ${n % 512}, 56, 56]`));
    items.push(item("graph line", `%${n}: f32[1, 64, 56, 56] = nn.conv2d(%${n - 1}, %w${n}, strides=[1, 1])`));
    items.push(item("graph line", `%${n}: f32[1, 64, 56, 56] = nn.relu(%${n})`));
  }
  const corpus = [part(items)];
  const typed = "/encoder/layer.12 relu zq";
  const times: number[] = [];
  for (let round = 0; round < 3; round++) {
    for (let n = 1; n <= typed.length; n++) {
      const start = performance.now();
      search(corpus, parseQuery(typed.slice(0, n)));
      times.push(performance.now() - start);
    }
  }
  times.sort((a, b) => a - b);
  const at = (share: number): string => (times[Math.floor(share * (times.length - 1))] ?? 0).toFixed(1);
  // Said, not asserted: machines may be busy.
  console.log(`# ${items.length} things: median ${at(0.5)} ms, 95 % ${at(0.95)} ms, worst ${at(1)} ms a key press`);
});
