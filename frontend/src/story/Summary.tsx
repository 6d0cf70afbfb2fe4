// The story panel without a selection: the slowest kernels and their layers.

import { value, type Build } from "../builds";
import { layerColor } from "../colors";
import { MeasureButton } from "../plots/NotMeasured";
import { timeText } from "../parts/figures";
import { RefLink } from "../parts/RefLink";
import { panes } from "../state";
import type { KernelInfo, Overview } from "../wire";
import { Placed, Regions } from "./Regions";
import { count, percent, sum, timeOf } from "./shares";

const TOP = 8;
/** The most layers of a kernel to name. */
const NAMED = 3;

/** Kernels of equal code, such as those of a block that the model repeats. */
interface Row {
  readonly kernels: readonly KernelInfo[];
  readonly figure: number;
}

export function Summary({ build }: { readonly build: Build }) {
  const overview = value(build.overview.value);
  if (!overview) return <p class="empty">Loading …</p>;
  const heat = timeOf(build);
  const figures = overview.kernels.map((k, n) => (heat ? (heat.kernels[n] ?? 0) : k.flops));
  const total = heat?.total ?? sum(figures);
  const all = rowsOf(overview.kernels, figures);
  const rows = all.slice(0, TOP);
  const away = new Set(overview.regions.flatMap((region) => region.layers));
  const alive = overview.layers.filter((layer, place) => layer.kernels.length || away.has(place)).length;
  const passes = overview.stages.filter((stage) => stage.changed).length - 1;
  const top = rows.reduce((s, row) => s + row.figure, 0);
  // The pane of times has the same button.
  const offered = panes.value.some((pane) => pane.kind === "time");
  const rest = all.slice(TOP).reduce((s, row) => s + row.kernels.length, 0);
  return (
    <div class="summary">
      <h2>{overview.model}</h2>
      <p>
        {plural(overview.layers.length, "layer")} became {plural(overview.kernels.length, "kernel")}
        {overview.regions.length > 0 && ` and ${plural(overview.regions.length, "region")} of other backends`}
        {alive < overview.layers.length && ` that compute ${alive} of them`}; {plural(passes, "pass", "passes")} changed something
        on the way.
      </p>
      <Regions build={build} overview={overview} heat={heat} />
      <Placed build={build.id} overview={overview} />
      <div class="summary-head">
        <h3>{heat ? "Where the time goes" : "Where the work is"}</h3>
        {!heat && build.source.live && !offered && <MeasureButton build={build} what="time" />}
      </div>
      <ol class="hottest">
        {rows.map((row) => (
          <Kernels key={row.kernels[0]?.index} build={build.id} overview={overview} row={row} total={total} most={rows[0]?.figure ?? 0} />
        ))}
      </ol>
      <p class="dim">
        {rest > 0 && `The other ${plural(rest, "kernel")} have ${percent(total ? 1 - top / total : 0)} of `}
        {rest === 0 && "In all "}
        {heat ? `${timeText(total)}. Known by ${heat.basis}.` : `${count(total)}FLOP.`}
      </p>
    </div>
  );
}

function rowsOf(kernels: readonly KernelInfo[], figures: readonly number[]): Row[] {
  const rows = new Map<number, { kernels: KernelInfo[]; figure: number }>();
  for (const kernel of kernels) {
    const row = rows.get(kernel.distinct) ?? { kernels: [], figure: 0 };
    row.kernels.push(kernel);
    row.figure += figures[kernel.index] ?? 0;
    rows.set(kernel.distinct, row);
  }
  const hotter = (a: KernelInfo, b: KernelInfo): number => (figures[b.index] ?? 0) - (figures[a.index] ?? 0);
  for (const row of rows.values()) row.kernels.sort(hotter);
  return [...rows.values()].sort((a, b) => b.figure - a.figure);
}

interface KernelsProps {
  readonly build: string;
  readonly overview: Overview;
  readonly row: Row;
  readonly total: number;
  readonly most: number;
}

function Kernels({ build, overview, row, total, most }: KernelsProps) {
  const [first, ...more] = row.kernels;
  if (!first) return null;
  return (
    <li>
      <div class="share-text">
        <span class="hottest-name" title={first.name}>
          <RefLink build={build} to={`kernel:${first.index}`}>{doing(overview, first)}</RefLink>
        </span>
        {more.length > 0 && <span class="dim" title={`${row.kernels.length} kernels with equal code`}>×{row.kernels.length}</span>}
        <span class="grow" />
        <b>{percent(total ? row.figure / total : 0)}</b>
      </div>
      <div class="track">
        <div class="fill" style={{ width: `${most ? (100 * row.figure) / most : 0}%` }} />
      </div>
      <Layers build={build} overview={overview} layers={[...new Set(row.kernels.flatMap((kernel) => kernel.layers))]} />
    </li>
  );
}

/** A kernel's description in terms of the model: the types of its layers, in order. */
function doing(overview: Overview, kernel: KernelInfo): string {
  const types = [...new Set(kernel.layers.map((place) => overview.layers[place]?.op ?? "").filter(Boolean))];
  return types.length ? types.join(" + ") : kernel.name;
}

interface LayersProps {
  readonly build: string;
  readonly overview: Overview;
  readonly layers: readonly number[];
}

function Layers({ build, overview, layers }: LayersProps) {
  const rest = layers.length - NAMED;
  return (
    <p class="layers">
      {layers.slice(0, NAMED).map((place) => (
        <span key={place} class="layer-name">
          <i class="dot" style={{ background: layerColor(place) }} />
          <RefLink build={build} to={`layer:${overview.layers[place]?.name ?? ""}`}>{overview.layers[place]?.name}</RefLink>
        </span>
      ))}
      {rest > 0 && <span class="dim">and {rest} more</span>}
    </p>
  );
}

function plural(n: number, one: string, many = `${one}s`): string {
  return `${n.toLocaleString("en")} ${n === 1 ? one : many}`;
}
