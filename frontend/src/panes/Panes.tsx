// Panes side by side, the borders between them, and links drawn from one to the next.

import { Fragment } from "preact";
import { useEffect } from "preact/hooks";
import { panes, threads } from "../state";
import { Divider } from "./Divider";
import { listen } from "./keys";
import { PaneFrame } from "./PaneFrame";
import { Threads } from "./Threads";

export function Panes() {
  useEffect(listen, []);
  const shown = panes.value;
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
      {shown.length === 0 && <p class="empty">No pane is open: choose a stage above, or press + at the end of the strip.</p>}
      {threads.value && <Threads />}
    </div>
  );
}
