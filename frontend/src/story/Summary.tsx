// What the story panel says before anything is chosen: what takes the time, and which layers that is.

import { value, type Build } from "../builds";
import { layerColor } from "../colors";
import { timeText } from "../parts/figures";
import { RefLink } from "../parts/RefLink";
import type { KernelInfo, Overview } from "../wire";
import { count, percent, sum, timeOf } from "./shares";

const TOP = 8;
/** So many layers of a kernel are named. */
const NAMED = 3;

interface Row {
  readonly kernel: KernelInfo;
  readonly figure: number;
}

export function Summary({ build }: { readonly build: Build }) {
  const overview = value(build.overview.value);
  if (!overview) return <p class="empty">Loading …</p>;
  const heat = timeOf(build);
  const figures = overview.kernels.map((k, n) => heat?.kernels[n] ?? (heat ? 0 : k.flops));
  const total = heat?.total ?? sum(figures);
  const rows = overview.kernels
    .map((kernel, n): Row => ({ kernel, figure: figures[n] ?? 0 }))
    .sort((a, b) => b.figure - a.figure)
    .slice(0, TOP);
  const alive = overview.layers.filter((layer) => layer.kernels.length).length;
  const passes = overview.stages.filter((stage) => stage.changed).length - 1;
  const top = rows.reduce((s, row) => s + row.figure, 0);
  return (
    <div class="summary">
      <h2>{overview.model}</h2>
      <p>
        {plural(overview.layers.length, "layer")} became {plural(overview.kernels.length, "kernel")}
        {alive < overview.layers.length && ` that compute ${alive} of them`}; {plural(passes, "pass", "passes")} changed something
        on the way.
      </p>
      <h3>{heat ? "Where the time goes" : "Where the arithmetic is"}</h3>
      <ol class="hottest">
        {rows.map(({ kernel, figure }) => (
          <li key={kernel.index}>
            <div class="share-text">
              <span class="hottest-name" title={kernel.name}>
                <RefLink build={build.id} to={`kernel:${kernel.index}`}>{doing(overview, kernel)}</RefLink>
              </span>
              <span class="grow" />
              <b>{percent(total ? figure / total : 0)}</b>
            </div>
            <div class="track">
              <div class="fill" style={{ width: `${(100 * figure) / Math.max(1, rows[0]?.figure ?? 1)}%` }} />
            </div>
            <Layers build={build.id} overview={overview} kernel={kernel} />
          </li>
        ))}
      </ol>
      <p class="dim">
        {rows.length < overview.kernels.length && `These ${rows.length} of ${overview.kernels.length} kernels make ${percent(total ? top / total : 0)} of `}
        {rows.length < overview.kernels.length && (heat ? `${timeText(total)}.` : `${count(total)}FLOP.`)}
        {heat ? ` ${heat.basis}` : " Nothing was measured yet."}
      </p>
    </div>
  );
}

/** What a kernel does in the model's own words: the types of its layers, in order. */
function doing(overview: Overview, kernel: KernelInfo): string {
  const types = [...new Set(kernel.layers.map((place) => overview.layers[place]?.op ?? "").filter(Boolean))];
  return types.length ? types.join(" + ") : kernel.name;
}

function Layers({ build, overview, kernel }: { readonly build: string; readonly overview: Overview; readonly kernel: KernelInfo }) {
  const rest = kernel.layers.length - NAMED;
  return (
    <p class="layers">
      {kernel.layers.slice(0, NAMED).map((place) => (
        <span key={place} class="layer-name">
          <i class="dot" style={{ background: layerColor(place) }} />
          <RefLink build={build} to={`layer:${overview.layers[place]?.name ?? ""}`}>{overview.layers[place]?.name}</RefLink>
        </span>
      ))}
      {rest > 0 && <span class="dim">and {rest} more</span>}
      <span class="grow" />
      <span class="dim">kernel {kernel.index}</span>
    </p>
  );
}

function plural(n: number, one: string, many = `${one}s`): string {
  return `${n.toLocaleString("en")} ${n === 1 ? one : many}`;
}
