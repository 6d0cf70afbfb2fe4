// Panes side by side, the borders between them, and links drawn from one to the next.

import { Fragment } from "preact";
import { useLayoutEffect } from "preact/hooks";
import { started } from "../builds";
import { opened, panes, threads } from "../state";
import { Divider } from "./Divider";
import { PaneFrame } from "./PaneFrame";
import { Threads } from "./Threads";

export function Panes() {
  const shown = panes.value;
  const wish = opened.value;
  useLayoutEffect(() => {
    if (wish) inSight(wish.key);
  }, [wish]);
  return (
    <div class={threads.value ? "panes threaded" : "panes"}>
      {shown.map((pane, n) => {
        const before = shown[n - 1];
        return (
          <Fragment key={pane.key}>
            {before && <Divider left={before.key} right={pane.key} />}
            <PaneFrame pane={pane} place={n} />
          </Fragment>
        );
      })}
      {started.value.state === "ready" && shown.length === 0 && <Nothing />}
      {threads.value && <Threads />}
    </div>
  );
}

/** If there are too many panes for the window's width, their row scrolls. */
function inSight(key: number): void {
  document.querySelector(`.pane[data-key="${key}"]`)?.scrollIntoView({ block: "nearest", inline: "nearest" });
}

function Nothing() {
  return (
    <p class="empty">
      Nothing is open. Press <kbd>Ctrl K</kbd> to open a pane, or choose a stage above.
    </p>
  );
}
