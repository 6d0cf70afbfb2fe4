// Names as the page shows them: nothing unseen, nothing that turns what stands around it.

import assert from "node:assert/strict";
import { test } from "node:test";
import { h, type VNode } from "preact";
import { guardTexts, names, shown, visible } from "../src/parts/names";

guardTexts();

test("what cannot be seen is written out", () => {
  assert.equal(visible("right\u202eto left\u2066"), "right\\u202eto left\\u2066");
  assert.equal(visible("red\u001b[31m\u0007"), "red\\x1b[31m\\x07");
  assert.equal(visible("tag\u{e0041}"), "tag\\U000e0041");
  assert.equal(visible("two\nlines\tand tabs, é, שלום, 層"), "two\nlines\tand tabs, é, שלום, 層");
});

test("names in a row stand by themselves", () => {
  assert.equal(names(["a", "b"]), "a, b");
  assert.equal(names(["שלום", "b"]), "\u2066שלום\u2069, b");
  // A name cannot end its isolation early, nor begin one.
  assert.equal(names(["של\u2069ום\u202e"]), "\u2066של\\u2069ום\\u202e\u2069");
  assert.equal(shown(names(["של\u2069ום", "x"])), "\u2066של\\u2069ום\u2069, x");
  assert.equal(shown("x\u2068\u202e"), "x\\u2068\\u202e");
});

test("all that is drawn is guarded", () => {
  const made = h("p", { title: "a\u202eb" }, "plain ", "x\u202e", "שלום", 3) as VNode<{ title: string; children: unknown[] }>;
  assert.equal(made.props.title, "a\\u202eb");
  const [plain, turned, hebrew, three] = made.props.children;
  assert.deepEqual([plain, turned, three], ["plain ", "x\\u202e", 3]);
  const isolated = hebrew as VNode<{ children: string }>;
  assert.deepEqual([isolated.type, isolated.props.children], ["bdi", "שלום"]);
  assert.equal((h("option", null, "שלום") as VNode<{ children: string }>).props.children, "שלום");
});
