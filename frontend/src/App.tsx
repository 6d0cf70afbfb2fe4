// The page: a bar, the film strip, panes side by side, the story.

import { useEffect } from "preact/hooks";
import { builds, buildOf, started } from "./builds";
import { starter } from "./build/starter";
import { current, panes, story } from "./state";
import { listen } from "./keyboard";
import { markFocused } from "./panes/moves";
import { PaneFrame } from "./panes/PaneFrame";
import { FilmStrip } from "./strip/FilmStrip";
import { StoryPanel } from "./story/StoryPanel";
import { Notices } from "./bar/Notices";
import { StatusLine } from "./bar/StatusLine";
import { TopBar } from "./bar/TopBar";
import { Dialogs } from "./dialogs/Dialogs";
import { BuildState } from "./build/BuildState";
import { Drop } from "./build/Drop";
import { Empty } from "./build/Empty";
import { Offer } from "./build/Offer";
import { ErrorBox } from "./parts/ErrorBox";

export function App() {
  const start = started.value;
  const build = buildOf(current.value) ?? builds.value[0] ?? null;
  const ready = build?.overview.value.state;
  useEffect(starter, [ready, start.state, build?.info.value.state]);
  useEffect(listen, []);
  useEffect(markFocused, []);
  if (start.state === "failed") return <ErrorBox error={start.error} />;
  return (
    <>
      <TopBar build={build} />
      {build && <FilmStrip build={build} />}
      <main>
        <div class="panes">
          {start.state === "ready" && !build && <Empty />}
          {build && !panes.value.length && build.info.value.state !== "ready" && <BuildState build={build} />}
          {panes.value.map((pane) => (
            <PaneFrame key={pane.key} pane={pane} />
          ))}
          {start.state === "ready" && !panes.value.length && <Nothing />}
        </div>
        {story.value && <StoryPanel />}
      </main>
      <StatusLine />
      <Notices />
      <Dialogs />
      <Drop />
      <Offer />
    </>
  );
}

function Nothing() {
  return (
    <p class="empty">
      Nothing is open. Press <kbd>Ctrl K</kbd> to open a pane, or choose a stage above.
    </p>
  );
}
