// The page: a bar, the film strip, panes side by side, the story.

import { useEffect } from "preact/hooks";
import { builds, buildOf, started } from "./builds";
import { current, story } from "./state";
import { listen } from "./keyboard";
import { Panes } from "./panes/Panes";
import { FilmStrip } from "./strip/FilmStrip";
import { StoryPanel } from "./story/StoryPanel";
import { Notices } from "./bar/Notices";
import { StatusLine } from "./bar/StatusLine";
import { TopBar } from "./bar/TopBar";
import { Dialogs } from "./dialogs/Dialogs";
import { Drop } from "./build/Drop";
import { Offer } from "./build/Offer";
import { Waiting, waits } from "./build/Waiting";
import { HeatBar } from "./plots/HeatBar";
import { ErrorBox } from "./parts/ErrorBox";

export function App() {
  const start = started.value;
  const build = buildOf(current.value) ?? builds.value[0] ?? null;
  useEffect(listen, []);
  const waiting = waits(build);
  if (start.state === "failed") return <ErrorBox error={start.error} />;
  return (
    <>
      <TopBar build={build} />
      {build && !waiting && <FilmStrip build={build} />}
      <HeatBar />
      <main>
        {waiting ? <Waiting build={build} /> : <Panes />}
        {story.value && !waiting && <StoryPanel />}
      </main>
      <StatusLine />
      <Notices />
      <Dialogs />
      <Drop />
      <Offer />
    </>
  );
}
