// An introduction to the page, and its keys: generated from the table of commands.

import { COMMANDS, type Command, type CommandGroup } from "../commands";
import { keyLabel } from "../keyboard";
import { Modal } from "./Modal";

const GESTURES: readonly (readonly [string, string])[] = [
  ["Hover a line, a node or a bar", "highlights its counterparts in all panes"],
  ["Click it", "moves the panes to its counterparts and shows its story"],
  ["Ctrl-click a link", "opens it in another pane"],
  ["A color", "is one layer of the model, the same everywhere"],
  ["The strip on top", "shows the model stage by stage; dimmed stages changed nothing"],
];

/** Commands that differ only by a number share a line. */
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
