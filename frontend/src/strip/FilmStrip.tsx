// The film strip: every stage from the model to the instructions, with what changed. Stand-in.

import { value, type Build } from "../builds";
import { open } from "../state";

export function FilmStrip({ build }: { readonly build: Build }) {
  const overview = value(build.overview.value);
  if (!overview) return <nav class="strip" aria-label="Stages" />;
  return (
    <nav class="strip" aria-label="Stages">
      {overview.stages.map((stage) => (
        <button key={stage.index} class={stage.changed ? "stage" : "stage same"} onClick={() => open(build.id, "stage", stage.index)}>
          <b>{stage.name}</b>
          <span>{stage.nodes} nodes</span>
        </button>
      ))}
    </nav>
  );
}
