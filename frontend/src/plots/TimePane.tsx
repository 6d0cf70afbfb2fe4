// Where the time goes: kernels, layers or types of operators, the slowest first.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { effect } from "@preact/signals";
import { value, type Build } from "../builds";
import { layerColor } from "../colors";
import { heatIn, isMeasured } from "../heat";
import { paneKeys } from "../panekeys";
import type { PaneProps } from "../panes/props";
import { point, reachIn, show } from "../state";
import { percent } from "../story/shares";
import type { Heat, Overview } from "../wire";
import { NotMeasured } from "./NotMeasured";
import { fewest, ranked, WAYS, type Row, type Way } from "./ranking";
import { figureText } from "./scale";
import { plural } from "./words";

/** The number of rows shown at first, and of further rows per step. */
const SHOWN = 150;
const DOTS = 4;

const NAMES: Readonly<Record<Way, string>> = { kernels: "Kernels", layers: "Layers", types: "Types" };

export function TimePane({ pane, build }: PaneProps) {
  const overview = value(build.overview.value);
  const measured = isMeasured(build, "time");
  const heat = heatIn(build, measured ? "time" : "flops");
  if (!overview) return <p class="empty">Loading …</p>;
  return (
    <div class="time-pane">
      {!measured && <NotMeasured build={build} what="time" />}
      {heat && <Ranking key={measured ? "time" : "flops"} pane={pane.key} build={build} overview={overview} heat={heat} measured={measured} />}
    </div>
  );
}

interface RankingProps {
  readonly pane: number;
  readonly build: Build;
  readonly overview: Overview;
  readonly heat: Heat;
  readonly measured: boolean;
}

function Ranking({ pane, build, overview, heat, measured }: RankingProps) {
  const [way, setWay] = useState<Way>("kernels");
  const [most, setMost] = useState(SHOWN);
  const list = useRef<HTMLOListElement>(null);
  const cursor = useRef(-1);
  const rows = useMemo(() => ranked(overview, heat, way), [overview, heat, way]);
  const total = heat.total ?? 0;
  const metric = measured ? "time" : "flops";
  const step = (by: number): void => {
    cursor.current = Math.min(rows.length - 1, Math.max(0, cursor.current + by));
    const row = rows[cursor.current];
    if (row?.ref) point({ build: build.id, ref: row.ref });
    list.current?.children[cursor.current]?.scrollIntoView({ block: "nearest" });
  };
  const choose = (row: Row | undefined, beside = false): void => {
    if (row?.ref) show({ build: build.id, ref: row.ref }, beside);
  };
  useEffect(
    () =>
      paneKeys(pane, {
        move: step,
        choose: () => choose(rows[cursor.current]),
        text: () => rows.map((row) => [figureText(metric, row.figure), percent(row.figure / total), row.title, row.detail].join("\t")).join("\n"),
      }),
    [rows],
  );
  useEffect(() => light(list.current, build, overview, rows), [rows, most]);
  const half = fewest(rows, 0.5);
  return (
    <>
      <div class="ranking-head">
        <p>
          {measured && <Wall build={build} heat={heat} />}
          {!measured && `${figureText("flops", total)} in ${plural(rows.length, NAMES[way].toLowerCase().slice(0, -1))}: arithmetic, not time. `}
          {rows.length > 2 && (
            <>
              <b>{half === 1 ? `One ${NAMES[way].toLowerCase().slice(0, -1)} has half of it` : `${half} ${NAMES[way].toLowerCase()} have half of it`}</b>
              {`, of ${rows.length}.`}
            </>
          )}
        </p>
        <div class="segments" role="group" aria-label="Sum up by">
          {WAYS.map((name) => (
            <button key={name} aria-pressed={way === name} onClick={() => { cursor.current = -1; setWay(name); }}>
              {NAMES[name]}
            </button>
          ))}
        </div>
      </div>
      <ol class="ranking" ref={list} onPointerLeave={() => point(null)}>
        {rows.slice(0, most).map((row, n) => (
          <li
            key={`${way}${n}`}
            title={`${row.title}\n${row.detail}`}
            data-row={n}
            onPointerEnter={() => row.ref && point({ build: build.id, ref: row.ref })}
            onClick={(event) => { cursor.current = n; choose(row, event.ctrlKey || event.metaKey); }}
          >
            <span class="rank-percent">{percent(total ? row.figure / total : 0)}</span>
            <span class="rank-figure">{figureText(metric, row.figure)}</span>
            <span class="rank-title">{row.title}</span>
            <span class="rank-share">
              <span class="rank-bar" style={{ width: `${(100 * row.figure) / (rows[0]?.figure ?? 1)}%` }} />
            </span>
            <span class="rank-detail">
              {row.layers.slice(0, DOTS).map((layer) => (
                <i key={layer} class="dot" style={{ background: layerColor(layer) }} />
              ))}
              {row.detail}
            </span>
          </li>
        ))}
      </ol>
      {rows.length > most && (
        <button class="more" onClick={() => setMost(most + 10 * SHOWN)}>
          {rows.length - most} more
        </button>
      )}
    </>
  );
}

/** The time of a run, and the part of it outside kernels. */
function Wall({ build, heat }: { readonly build: Build; readonly heat: Heat }) {
  const line = value(build.ask("timeline").value);
  const total = heat.total ?? 0;
  if (!line) return <>{`${figureText("time", total)} in kernels. `}</>;
  const outside = line.wall_ns - total;
  const where = outside > 0 ? `${figureText("time", total)} of it in kernels, the rest outside` : "all of it in kernels";
  return <>{`One run takes ${figureText("time", line.wall_ns)}, ${where}. `}</>;
}

/** Highlights the rows that belong to the focus, without rendering the table again. */
function light(list: HTMLElement | null, build: Build, overview: Overview, rows: readonly Row[]): () => void {
  const places = new Map(overview.layers.map((layer, n) => [layer.name, n]));
  return effect(() => {
    const reach = reachIn(build.id).value;
    for (const element of list?.children ?? []) {
      const ref = rows[Number((element as HTMLElement).dataset["row"])]?.ref;
      const lit =
        ref?.kind === "kernel" ? reach.kernels.has(ref.kernel)
        : ref?.kind === "region" ? rows[Number((element as HTMLElement).dataset["row"])]?.layers.some((layer) => reach.layers.has(layer)) ?? false
        : ref?.kind === "layer" ? reach.layers.has(places.get(ref.name) ?? -1)
        : false;
      element.toggleAttribute("data-lit", lit);
    }
  });
}
