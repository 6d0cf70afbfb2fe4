// The legend of the colors: the scale with its numbers, the basis of the figures, and notes.

import { backendColor, backendNames } from "../backends";
import { buildOf, builds } from "../builds";
import { heatIn, isMeasured, setMetric, wholeScale } from "../heat";
import { Icon } from "../parts/Icon";
import { current, metric, type Metric } from "../state";
import { MeasureButton } from "./NotMeasured";
import { adds, palette } from "./scale";

const TITLES: Readonly<Record<Metric, string>> = {
  "": "",
  backend: "Backend",
  time: "Time",
  flops: "Arithmetic",
  bytes: "Memory traffic",
  peak: "Share of peak",
  error: "Error against f32",
  quantization: "Quantization error",
};

export function HeatBar() {
  const by = metric.value;
  const build = buildOf(current.value) ?? builds.value[0] ?? null;
  if (!by || !build) return null;
  if (by === "backend") return <Backends />;
  const measured = isMeasured(build, by);
  const heat = heatIn(build, by);
  return (
    <div class="heat-bar" role="region" aria-label="What colors mean">
      <b>{TITLES[by]}</b>
      {measured && <Legend by={by} />}
      {!measured && <span class="dim">{by === "error" ? "not compared yet" : "not measured yet"}</span>}
      {(!measured || NEED_AGAIN.has(by)) && build.source.live && <MeasureButton build={build} what={by} again={measured} />}
      {heat && heat.notes.length > 0 && (
        <span class="heat-note" title={heat.notes.join("\n")}>
          <Icon name="error" size={13} /> {heat.notes[0]}
        </span>
      )}
      {heat && (
        <span class="heat-basis dim" title={heat.basis}>
          {heat.basis}
        </span>
      )}
      <span class="grow" />
      <button class="quiet" aria-label="Color by layer only" title="Color by layer only" onClick={() => setMetric("")}>
        <Icon name="close" size={12} />
      </button>
    </div>
  );
}

/** The backends' names beside their colors. */
function Backends() {
  const color = backendColor.value;
  return (
    <div class="heat-bar" role="region" aria-label="What colors mean">
      <b>{TITLES.backend}</b>
      <ul class="legend-names" aria-label="Backends">
        {backendNames.value.map((name) => (
          <li key={name}>
            <i class="dot" aria-hidden="true" style={{ background: color(name) }} /> {name}
          </li>
        ))}
      </ul>
      <span class="heat-basis dim">that runs the layer or operator; what was folded away has none</span>
      <span class="grow" />
      <button class="quiet" aria-label="Color by layer only" title="Color by layer only" onClick={() => setMetric("")}>
        <Icon name="close" size={12} />
      </button>
    </div>
  );
}

const NEED_AGAIN: ReadonlySet<Metric> = new Set<Metric>(["time", "peak"]);

function Legend({ by }: { readonly by: Metric }) {
  const scale = wholeScale.value;
  if (!scale) return null;
  const about = adds(by)
    ? "Of layers and kernels. Lines and instructions have the same colors, the hottest of their kernel at the right."
    : "Of layers and kernels.";
  return (
    <span class="legend" title={about}>
      <span class="legend-bar" style={{ background: `linear-gradient(to right, ${palette.value.join(",")})` }} />
      <span class="legend-ticks">
        {scale.ticks.map((tick, n) => (
          <span
            key={tick.at}
            class={n === 0 ? "first" : n === scale.ticks.length - 1 ? "last" : ""}
            style={{ left: `${100 * tick.at}%` }}
          >
            {tick.text}
          </span>
        ))}
      </span>
    </span>
  );
}
