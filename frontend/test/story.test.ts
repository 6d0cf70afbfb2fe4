// The story as text, its figures, and what the palette finds.

import assert from "node:assert/strict";
import { test } from "node:test";
import { COMMANDS } from "../src/commands";
import { found } from "../src/dialogs/Palette";
import { storyText } from "../src/story/exports";
import { changes, count, percent } from "../src/story/shares";
import { NOTHING } from "../src/thread";
import type { Story } from "../src/wire";

const STORY: Story = {
  about: "layer:conv1",
  title: "conv1",
  subtitle: "Conv",
  sections: [
    {
      kind: "kernel",
      head: "kernel",
      ref: "kernel:0",
      sentences: [
        { parts: [{ text: "Runs in ", ref: "", code: false }, { text: "conv2d", ref: "kernel:0", code: true }, { text: ".", ref: "", code: false }], level: 0 },
        { parts: [{ text: "alone", ref: "", code: false }], level: 1 },
      ],
    },
  ],
};

test("a story as text keeps its heads and indents its sentences", () => {
  assert.equal(storyText(STORY), "conv1\nConv\n\nkernel\n  Runs in conv2d.\n    alone\n");
});

test("figures are short", () => {
  assert.equal(percent(0.1234), "12 %");
  assert.equal(percent(0.0123), "1.2 %");
  assert.equal(percent(0.0001), "< 0.1 %");
  assert.equal(percent(0), "0.0 %");
  assert.equal(`${count(3.87e9)}FLOP`, "3.87 GFLOP");
  assert.equal(`${count(12)}FLOP`, "12.0 FLOP");
});

test("a stage counts as changed where the nodes are others", () => {
  const nodes = [new Set([1]), new Set([1]), new Set([2, 3]), new Set<number>()];
  assert.deepEqual(changes({ ...NOTHING, nodes }), [true, false, true, true]);
  assert.deepEqual(changes(NOTHING), []);
});

test("the palette finds commands by any words of their titles and groups", () => {
  const ids = (typed: string): string[] =>
    found(COMMANDS, typed, typed.split(" ").filter(Boolean)).map((row) => ("item" in row ? row.item.id : ""));
  assert.equal(ids("").length, COMMANDS.length);
  assert.equal(ids("search")[0], "search");
  assert.ok(ids("theme dark").includes("theme.dark"));
  assert.ok(ids("thmdrk").length < COMMANDS.length, "letters in order, near each other");
  assert.deepEqual(ids("zzzz"), []);
});
