// Kernels under the machine's roofline: arithmetic intensity, throughput, and limit of each.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { value, type Build } from "../builds";
import { heatIn, isMeasured } from "../heat";
import { paneKeys } from "../panekeys";
import type { PaneProps } from "../panes/props";
import { point as pointAt, reachIn, show } from "../state";
import { timeText, iterationsText } from "../parts/figures";
import { percent } from "../story/shares";
import type { Overview, Roofline } from "../wire";
import { ErrorBox } from "../parts/ErrorBox";
import { ticksOf } from "./axes";
import { NotMeasured } from "./NotMeasured";
import { plotted, rounded, type Group, type Plot, type Point } from "./roofline";
import { useSize } from "./size";
import { standalone } from "./svg";
import { Tip } from "./Tip";
import { layersText, plural } from "./words";

export function RooflinePane({ pane, build }: PaneProps) {
  const overview = value(build.overview.value);
  if (!overview) return <p class="empty">Loading …</p>;
  if (!isMeasured(build, "time")) return <NotMeasured build={build} what="time" />;
  const asked = build.ask("roofline").value;
  if (asked.state === "failed") return <ErrorBox error={asked.error} />;
  if (asked.state === "loading") return <p class="empty">Loading …</p>;
  return <Drawn pane={pane.key} build={build} overview={overview} roofline={asked.value} />;
}

interface DrawnProps {
  readonly pane: number;
  readonly build: Build;
  readonly overview: Overview;
  readonly roofline: Roofline;
}

function Drawn({ pane, build, overview, roofline }: DrawnProps) {
  const space = useRef<HTMLDivElement>(null);
  const svg = useRef<SVGSVGElement>(null);
  const { width, height } = useSize(space);
  const heat = heatIn(build, "time");
  const plot = useMemo(
    () => (width && height ? plotted(overview, roofline, heat?.layers ?? [], width, height) : null),
    [overview, roofline, heat, width, height],
  );
  const [over, setOver] = useState(-1);
  const enter = (n: number): void => {
    setOver(n);
    const kernel = plot?.points[n]?.kernels[0];
    pointAt(kernel === undefined ? null : { build: build.id, ref: { kind: "kernel", kernel } });
  };
  const choose = (n: number, beside = false): void => {
    const kernel = plot?.points[n]?.kernels[0];
    if (kernel !== undefined) show({ build: build.id, ref: { kind: "kernel", kernel } }, beside);
  };
  useEffect(
    () =>
      paneKeys(pane, {
        move: (by) => enter(Math.min((plot?.points.length ?? 1) - 1, Math.max(0, over + by))),
        choose: () => choose(over),
        text: () => (plot ? [...plot.points, ...plot.rest].map((group) => line(overview, group)).join("\n") : ""),
        svg: () => (svg.current ? standalone(svg.current, `Roofline of ${overview.model}`) : ""),
      }),
    [plot, over],
  );
  const tip = plot?.points[over];
  return (
    <div class="roofline">
      <p class="plot-head">
        Each point is the kernels of one code, its area their time. <span class="computes">●</span> arithmetic limits them,{" "}
        <span class="waits">◆</span> memory does. Roofs as measured here, {plural(roofline.threads, "thread")}.
      </p>
      <div class="plot-space" ref={space}>
        {plot && (
          <svg ref={svg} width={width} height={height} class="plot" role="img" aria-label={`Roofline of ${overview.model}`}>
            <Axes plot={plot} />
            <Roofs plot={plot} />
            <Points build={build} plot={plot} over={over} enter={enter} choose={choose} />
            <RoofNames plot={plot} />
          </svg>
        )}
        {tip && (
          <Tip x={tip.x} y={tip.y}>
            <Told overview={overview} roofline={roofline} group={tip} />
          </Tip>
        )}
      </div>
      {plot && plot.rest.length > 0 && <Rest rest={plot.rest} />}
    </div>
  );
}

function Axes({ plot }: { readonly plot: Plot }) {
  const { x, y, inside } = plot;
  const [right, bottom] = [inside.x + inside.width, inside.y + inside.height];
  return (
    <g class="axes">
      {ticksOf(x).map(({ value: at, text }) => (
        <g key={`x${at}`}>
          <line class="grid" x1={x.at(at)} x2={x.at(at)} y1={inside.y} y2={bottom} />
          <text class="tick" x={x.at(at)} y={bottom + 14} text-anchor={right - x.at(at) < 14 ? "end" : "middle"}>{text}</text>
        </g>
      ))}
      {ticksOf(y).map(({ value: at, text }) => (
        <g key={`y${at}`}>
          <line class="grid" x1={inside.x} x2={right} y1={y.at(at)} y2={y.at(at)} />
          <text class="tick" x={inside.x - 5} y={y.at(at) + 4} text-anchor="end">{text}</text>
        </g>
      ))}
      <text class="axis" x={inside.x + inside.width / 2} y={bottom + 30} text-anchor="middle">FLOP per byte</text>
      <text class="axis" x={12} y={inside.y + inside.height / 2} text-anchor="middle" transform={`rotate(-90 12 ${inside.y + inside.height / 2})`}>
        GFLOP/s
      </text>
    </g>
  );
}

function Roofs({ plot }: { readonly plot: Plot }) {
  return (
    <g>
      {plot.roofs.map(({ name, from, to }) => (
        <line key={name} class="roof" x1={from[0]} y1={from[1]} x2={to[0]} y2={to[1]} />
      ))}
    </g>
  );
}

/** Over the points, which may stand anywhere. */
function RoofNames({ plot }: { readonly plot: Plot }) {
  return (
    <g>
      {plot.roofs.map(({ name, text, flat, label: [x, y] }) => (
        <text key={name} class="roof-label" x={x} y={y} transform={flat ? undefined : `rotate(${plot.angle} ${x} ${y})`}>
          {text}
        </text>
      ))}
    </g>
  );
}

interface PointsProps {
  readonly build: Build;
  readonly plot: Plot;
  readonly over: number;
  readonly enter: (n: number) => void;
  readonly choose: (n: number, beside: boolean) => void;
}

function Points({ build, plot, over, enter, choose }: PointsProps) {
  const reach = reachIn(build.id).value;
  const lit = plot.points.map((point) => point.kernels.some((kernel) => reach.kernels.has(kernel)));
  const some = lit.includes(true);
  return (
    <g onPointerLeave={() => enter(-1)}>
      {plot.points.map((point, n) => (
        <g
          key={n}
          class={`point ${point.limit === "compute" ? "computes" : "waits"} ${lit[n] || n === over ? "lit" : some ? "faint" : ""}`}
          role="button"
          aria-label={`${point.text}: ${timeText(point.ns)}, ${rounded(point.gflops)} GFLOP/s, limit ${point.limit}`}
          onPointerEnter={() => enter(n)}
          onClick={(event) => choose(n, event.ctrlKey || event.metaKey)}
        >
          <Mark point={point} />
        </g>
      ))}
      {plot.points.map(
        (point, n) =>
          point.label && (
            <text key={n} class={`point-label ${some && !lit[n] ? "faint" : ""}`} x={point.label.x + 1} y={point.label.y + point.label.height - 3}>
              {point.text}
            </text>
          ),
      )}
    </g>
  );
}

/** A disc for compute-bound kernels, a diamond for memory-bound ones: not color alone. */
function Mark({ point: { x, y, radius, limit } }: { readonly point: Point }) {
  if (limit === "compute") return <circle cx={x} cy={y} r={radius} />;
  const r = radius * 1.2;
  return <path d={`M${x} ${y - r}L${x + r} ${y}L${x} ${y + r}L${x - r} ${y}Z`} />;
}

function Told({ overview, roofline, group }: { readonly overview: Overview; readonly roofline: Roofline; readonly group: Group }) {
  const total = roofline.points.reduce((sum, point) => sum + point.ns, 0);
  const kernel = overview.kernels[group.kernels[0] ?? -1];
  const alone = group.kernels.length === 1 && roofline.points.find((point) => point.kernel === group.kernels[0]);
  const iterations = alone ? iterationsText(alone.ns, alone.runs) : "";
  return (
    <>
      <b>{group.name}</b>
      {kernel && <p class="dim">{group.kernels.length > 1 ? `${group.kernels.length} kernels, as ${kernel.name}` : kernel.name}</p>}
      {kernel && <p>{layersText(overview, kernel, 3)}</p>}
      <p>
        {timeText(group.ns)}, {percent(total ? group.ns / total : 0)} of the kernels' time{iterations && `; ${iterations}`}
      </p>
      <p>
        {rounded(group.gflops)} GFLOP/s at {group.intensity.toPrecision(3)} FLOP per byte
      </p>
      <p>
        limit: {group.limit === "compute" ? "arithmetic" : `reading and writing ${group.limit}`}; {percent(group.limitShare)} of what that allows
      </p>
    </>
  );
}

function Rest({ rest }: { readonly rest: readonly Group[] }) {
  const kernels = rest.reduce((sum, group) => sum + group.kernels.length, 0);
  const ns = rest.reduce((sum, group) => sum + group.ns, 0);
  return <p class="plot-foot dim">{`Not shown: ${plural(kernels, "kernel")} that only ${kernels === 1 ? "moves" : "move"} data, ${timeText(ns)}.`}</p>;
}

function line(overview: Overview, group: Group): string {
  const names = group.kernels.map((kernel) => overview.kernels[kernel]?.name ?? "").join(" ");
  return [timeText(group.ns), `${rounded(group.gflops)} GFLOP/s`, `${group.intensity.toPrecision(3)} FLOP/B`, group.limit, percent(group.limitShare), names].join("\t");
}
