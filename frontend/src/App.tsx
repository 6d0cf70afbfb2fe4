// The page: a bar, the film strip, panes side by side, the story.

import { useEffect } from "preact/hooks";
import { builds, buildOf, started } from "./builds";
import { starter } from "./build/starter";
import { current, panes, story } from "./state";
import { PaneFrame } from "./panes/PaneFrame";
import { FilmStrip } from "./strip/FilmStrip";
import { StoryPanel } from "./story/StoryPanel";
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
        </div>
        {story.value && <StoryPanel />}
      </main>
      <Dialogs />
      <Drop />
      <Offer />
    </>
  );
}
