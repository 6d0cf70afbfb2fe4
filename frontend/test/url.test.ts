import assert from "node:assert/strict";
import { test } from "node:test";
import { batch } from "@preact/signals";
import { makePane, metric, panes, result, selected, story, theme, threads, iteration, values } from "../src/state";
import { paneText, read, readPane, write } from "../src/url";

test("panes are read as they are written", () => {
  for (const text of ["a/model:0", "a/stage:21", "b/stage:3!graph", "a/kernels:0", "a/asm:158", "c/diff:0"]) {
    const pane = readPane(text);
    assert.ok(pane, text);
    assert.equal(paneText(pane), text);
  }
});

test("what is no pane reads as none", () => {
  for (const text of ["", "a/model", "a/other:1", "A/model:0", "a/stage:-1", "a/stage:1!drawn", "a/stage:12345678", "<b>/model:0"]) {
    assert.equal(readPane(text), null, text);
  }
});

test("the whole state comes back from its URL", () => {
  batch(() => {
    panes.value = [makePane("a", "model", 0), makePane("a", "stage", 13, "graph"), makePane("b", "loops", 7)];
    selected.value = { build: "a", ref: { kind: "layer", name: "a/b c&d=#é:1" } };
    metric.value = "time";
    theme.value = "light";
    story.value = false;
    threads.value = true;
    values.value = true;
    iteration.value = 2;
    result.value = 1;
  });
  const text = write();
  assert.ok(text.startsWith("p=a/model:0&p=a/stage:13!graph&p=b/loops:7&at=a/layer:a/b"), text);
  batch(() => {
    panes.value = [];
    selected.value = null;
    metric.value = "";
    theme.value = "auto";
    story.value = true;
    threads.value = false;
    values.value = false;
    iteration.value = null;
    result.value = 0;
  });
  read(`#${text}`);
  assert.equal(write(), text);
  assert.deepEqual(panes.value.map(paneText), ["a/model:0", "a/stage:13!graph", "b/loops:7"]);
  assert.deepEqual(selected.value, { build: "a", ref: { kind: "layer", name: "a/b c&d=#é:1" } });
  assert.ok(text.includes("values=1&iteration=3&result=1"), text);
  assert.deepEqual([values.value, iteration.value, result.value], [true, 2, 1]);
  assert.ok(!story.value && threads.value && theme.value === "light");
});

test("a hash that says nonsense is left out, not taken over", () => {
  read("#p=a/model:0&p=x&heat=love&theme=pink&at=nothing&values=yes&iteration=0&result=-1");
  assert.deepEqual(panes.value.map(paneText), ["a/model:0"]);
  assert.equal(metric.value, "");
  assert.deepEqual([values.value, iteration.value, result.value], [false, null, 0]);
  assert.equal(theme.value, "auto");
  assert.equal(selected.value, null);
});
