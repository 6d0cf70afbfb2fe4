// The page: a bar, the film strip, panes side by side, the story.

import { useEffect } from "preact/hooks";
import { builds, buildOf, started } from "./builds";
import { arrange } from "./arrange";
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
import { HeatBar } from "./plots/HeatBar";
import { ErrorBox } from "./parts/ErrorBox";

export function App() {
  const start = started.value;
  const build = buildOf(current.value) ?? builds.value[0] ?? null;
  const ready = build?.overview.value.state;
  useEffect(arrange, [ready]);
  useEffect(listen, []);
  useEffect(markFocused, []);
  if (start.state === "failed") return <ErrorBox error={start.error} />;
  return (
    <>
      <TopBar build={build} />
      {build && <FilmStrip build={build} />}
      <HeatBar />
      <main>
        <div class="panes">
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
