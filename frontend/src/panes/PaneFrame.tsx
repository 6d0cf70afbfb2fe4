// The frame of a pane: its title, which stage or kernel it shows, text or graph, close.

import { buildOf, value, type Build } from "../builds";
import { BuildState } from "../build/BuildState";
import { BuildBadge } from "../compare/Badge";
import { close, update, type Pane } from "../state";
import { REGISTRY } from "./registry";

export function PaneFrame({ pane }: { readonly pane: Pane }) {
  const build = buildOf(pane.build);
  const shown = REGISTRY[pane.kind];
  if (!build) return null;
  const Body = pane.view === "graph" && shown.drawn ? shown.drawn : shown.text;
  return (
    <section class="pane" data-kind={pane.kind} data-key={pane.key} aria-label={shown.title}>
      <header>
        <BuildBadge build={build} />
        <h2>{shown.title}</h2>
        <Which pane={pane} build={build} />
        <span class="grow" />
        {shown.graph && (
          <button
            aria-pressed={pane.view === "graph"}
            title="Show as text or graph"
            onClick={() => update(pane.key, { view: pane.view ? "" : "graph" })}
          >
            {pane.view ? "text" : "graph"}
          </button>
        )}
        <button title="Close" aria-label="Close" onClick={() => close(pane.key)}>
          ×
        </button>
      </header>
      <div class="body">
        {build.info.value.state === "ready" ? <Body pane={pane} build={build} /> : <BuildState build={build} />}
      </div>
    </section>
  );
}

/** Chooses the stage or kernel that a pane shows. */
function Which({ pane, build }: { readonly pane: Pane; readonly build: Build }) {
  const overview = value(build.overview.value);
  const counted = REGISTRY[pane.kind].arg;
  if (!overview || !counted) return null;
  const options =
    counted === "stage"
      ? overview.stages.map((s) => ({ at: s.index, text: `${s.index} ${s.name}${s.changed ? "" : " ="}` }))
      : overview.kernels.map((k) => ({ at: k.index, text: `${k.index} ${k.name}` }));
  return (
    <select
      value={pane.arg}
      aria-label={counted}
      onChange={(event) => update(pane.key, { arg: Number(event.currentTarget.value) })}
    >
      {options.map((o) => (
        <option key={o.at} value={o.at}>
          {o.text}
        </option>
      ))}
    </select>
  );
}
