// All available commands, found by name.

import { useMemo, useState } from "preact/hooks";
import { COMMANDS, targets, type Command } from "../commands";
import { keyLabel } from "../keyboard";
import { marks, NONE, rank, rankWords, span, FUZZY, type Rank } from "../search/rank";
import { Marked } from "../search/Marked";
import { Finder, type Row } from "./Finder";
import { closeDialog, Modal } from "./Modal";

export function Palette() {
  const [typed, setTyped] = useState("");
  const commands = useMemo(() => [...COMMANDS, ...targets()].filter((c) => c.when?.() ?? true), []);
  const query = typed.trim().toLowerCase();
  const words = query.split(/\s+/).filter(Boolean);
  const rows = useMemo(() => found(commands, query, words), [commands, query]);
  return (
    <Modal label="Commands" head={false}>
      <Finder
        label="Commands"
        placeholder="What do you want to do?"
        query={typed}
        onQuery={setTyped}
        rows={rows}
        draw={(command) => <CommandRow command={command} query={query} words={words} />}
        onChoose={(command) => {
          closeDialog();
          // Run after the dialog has restored the focus: the command may move it.
          setTimeout(command.run);
        }}
        empty="No such command."
        below={
          <>
            <span><kbd>↑</kbd> <kbd>↓</kbd> move</span>
            <span><kbd>Enter</kbd> do it</span>
            <span class="grow" />
            <span><kbd>Esc</kbd> close</span>
          </>
        }
      />
    </Modal>
  );
}

function CommandRow({ command, query, words }: { readonly command: Command; readonly query: string; readonly words: readonly string[] }) {
  return (
    <>
      <span class="choice-group">{command.group}</span>
      <span class="choice-text" data-command={command.id}>
        <Marked text={command.title} marks={marks(command.title, query, words)} />
      </span>
      {command.keys?.[0] && <kbd>{keyLabel(command.keys[0])}</kbd>}
    </>
  );
}

/** Matching commands, the best first; equal matches in the order of the table. */
export function found(commands: readonly Command[], query: string, words: readonly string[]): Row<Command>[] {
  const rated = commands.flatMap((item) => {
    const to = rating(`${item.title} ${item.group}`.toLowerCase(), query, words);
    return to === NONE ? [] : [{ item, to }];
  });
  return rated.sort((a, b) => a.to - b.to).map(({ item }) => ({ item }));
}

function rating(text: string, query: string, words: readonly string[]): Rank {
  if (!query) return 0;
  const whole = rank(text, query);
  if (whole !== NONE) return whole;
  const scattered = rankWords(text, "", words);
  if (scattered !== NONE) return scattered;
  return span(text, words.join("")) ? FUZZY : NONE;
}
