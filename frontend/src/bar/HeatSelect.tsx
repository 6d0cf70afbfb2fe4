// Selects the meaning of colors: the layer only, or a figure.

import { setMetric } from "../heat";
import { metric, type Metric } from "../state";

const NAMES: Readonly<Record<Metric, string>> = {
  "": "by layer",
  backend: "by backend",
  time: "by time",
  flops: "by FLOP",
  bytes: "by bytes",
  peak: "by share of peak",
  error: "by error",
  quantization: "by quantization error",
};

export function HeatSelect() {
  return (
    <label class="heat-select" title="What colors mean">
      <span class="wide-only">Color</span>
      <select
        aria-label="Color"
        value={metric.value}
        onChange={(event) => setMetric(event.currentTarget.value as Metric)}
      >
        {(Object.keys(NAMES) as Metric[]).map((name) => (
          <option key={name} value={name}>{NAMES[name]}</option>
        ))}
      </select>
    </label>
  );
}
