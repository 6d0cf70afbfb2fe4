// The table of commands: keys mean one thing, what is typed is left alone, and the docs list all.

import assert from "node:assert/strict";
import { readFileSync, writeFileSync } from "node:fs";
import { test } from "node:test";
import { COMMANDS } from "../src/commands";
import { keyLabel, keyName } from "../src/keyboard";

test("ids and titles are told apart", () => {
  assert.equal(new Set(COMMANDS.map((c) => c.id)).size, COMMANDS.length);
  assert.equal(new Set(COMMANDS.map((c) => c.title)).size, COMMANDS.length);
});

test("a key belongs to one command", () => {
  const keys = COMMANDS.flatMap((c) => c.keys ?? []);
  assert.deepEqual(keys.filter((key, n) => keys.indexOf(key) !== n), []);
});

test("keys are named as the browser names them", () => {
  const press = (key: string, more: Partial<KeyboardEvent> = {}): string =>
    keyName({ key, ctrlKey: false, metaKey: false, altKey: false, ...more });
  assert.equal(press("k"), "k");
  assert.equal(press("K", { ctrlKey: true }), "ctrl+k");
  assert.equal(press("k", { metaKey: true }), "ctrl+k");
  assert.equal(press("ArrowLeft", { altKey: true }), "alt+ArrowLeft");
  assert.equal(keyLabel("ctrl+k"), "Ctrl K");
  assert.equal(keyLabel("alt+ArrowLeft"), "Alt ←");
  assert.equal(keyLabel("/"), "/");
});

test("docs/explorer.md lists every command with its keys (UPDATE=1 writes them)", () => {
  const page = readFileSync(PAGE, "utf8");
  const [start, end] = [page.indexOf(START) + START.length, page.indexOf(END)];
  assert.ok(start >= START.length && end > start, "docs/explorer.md has no place for the table");
  const wanted = `\n${table()}\n`;
  if (process.env["UPDATE"]) writeFileSync(PAGE, page.slice(0, start) + wanted + page.slice(end));
  else assert.equal(page.slice(start, end), wanted);
});

const PAGE = "../docs/explorer.md";
const START = "<!-- commands: written by frontend/test/commands.test.ts -->";
const END = "<!-- end of commands -->";

function table(): string {
  const lines = ["| | command | keys |", "|---|---|---|"];
  let group = "";
  for (const { id, title, keys = [], group: its } of COMMANDS) {
    if (/^pane\.[2-9]$/.test(id)) continue;
    const nine = id === "pane.1";
    const labels = keys.map((key) => `\`${keyLabel(key)}\``).join(" ");
    lines.push(`| ${its === group ? "" : its} | ${nine ? "To pane 1 to 9" : title} | ${nine ? "`1` … `9`" : labels} |`);
    group = its;
  }
  return lines.join("\n");
}
