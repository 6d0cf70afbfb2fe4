// What the page is, and its keys: made of the table of commands, so it cannot be out of date.

import { COMMANDS, type Command, type CommandGroup } from "../commands";
import { keyLabel } from "../keyboard";
import { Modal } from "./Modal";

const GESTURES: readonly (readonly [string, string])[] = [
  ["Hover a line, a node or a bar", "all its counterparts light up, in all panes"],
  ["Click it", "the panes go to the counterparts, and its story is told"],
  ["Ctrl-click a link", "it opens in one more pane"],
  ["A color", "is one layer of the model, the same everywhere"],
  ["The strip on top", "is what became of the model, stage by stage; dimmed stages changed nothing"],
];

/** Commands that differ by a number only are one line. */
const NUMBERED = /^pane\.([2-9])$/;

export function Help() {
  const groups = new Map<CommandGroup | "More", Command[]>();
  for (const command of COMMANDS) {
    if (!command.keys?.length || NUMBERED.test(command.id)) continue;
    const group = command.group === "Find" || command.group === "Move" || command.group === "Panes" ? command.group : "More";
    groups.set(group, [...(groups.get(group) ?? []), command]);
  }
  return (
    <Modal label="Help" wide>
      <div class="help">
        <section>
          <h3>With the mouse</h3>
          <dl class="gestures">
            {GESTURES.map(([what, does]) => (
              <div key={what}>
                <dt>{what}</dt>
                <dd>{does}</dd>
              </div>
            ))}
          </dl>
        </section>
        <div class="key-groups">
          {[...groups].map(([group, commands]) => (
            <section key={group}>
              <h3>{group}</h3>
              <dl class="keys">
                {commands.map((command) => (
                  <div key={command.id} data-command={command.id}>
                    <dt>
                      {command.id === "pane.1" ? <><kbd>1</kbd> … <kbd>9</kbd></> : command.keys?.map((key) => <kbd key={key}>{keyLabel(key)}</kbd>)}
                    </dt>
                    <dd>{command.id === "pane.1" ? "To pane 1 to 9" : command.title}</dd>
                  </div>
                ))}
              </dl>
            </section>
          ))}
        </div>
        <p class="dim">
          Everything else is in the list of all commands (<kbd>Ctrl K</kbd>). The address of the page holds all that is shown: keep it,
          or send it on.
        </p>
      </div>
    </Modal>
  );
}
