// The table of commands: keys mean one thing, what is typed is left alone, and the docs list all.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
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

test("docs/explorer.md lists every command with its keys", () => {
  const page = readFileSync("../docs/explorer.md", "utf8");
  const missing = COMMANDS.filter((c) => !page.includes(row(c.title, c.keys ?? [])));
  assert.deepEqual(missing.map((c) => row(c.title, c.keys ?? [])), [], "lines for the table of docs/explorer.md");
});

/** A line of the table in docs/explorer.md. */
function row(title: string, keys: readonly string[]): string {
  return `| ${title} | ${keys.map((key) => `\`${keyLabel(key)}\``).join(", ")} |`;
}
