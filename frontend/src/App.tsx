// The page: a bar, the film strip, panes side by side, the story.

import { useEffect } from "preact/hooks";
import { builds, buildOf, started } from "./builds";
import { arrange, current, story } from "./state";
import { Panes } from "./panes/Panes";
import { FilmStrip } from "./strip/FilmStrip";
import { StoryPanel } from "./story/StoryPanel";
import { TopBar } from "./bar/TopBar";
import { Dialogs } from "./dialogs/Dialogs";
import { ErrorBox } from "./parts/ErrorBox";

export function App() {
  const start = started.value;
  const build = buildOf(current.value) ?? builds.value[0] ?? null;
  const ready = build?.overview.value.state;
  useEffect(arrange, [ready]);
  if (start.state === "failed") return <ErrorBox error={start.error} />;
  return (
    <>
      <TopBar build={build} />
      {build && <FilmStrip build={build} />}
      <main>
        <Panes />
        {story.value && <StoryPanel />}
      </main>
      <Dialogs />
    </>
  );
}
