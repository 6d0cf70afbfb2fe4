// The cost of one more token of a language model: bytes of weights and caches that must be read,
// and time, by layer; a decode step and the first call of a prompt apart.

import { useEffect, useRef } from "preact/hooks";
import { value, type Build } from "../builds";
import { layerColor } from "../colors";
import { MEASURING_TOKENS, measureTokens } from "../heat";
import { isRunning } from "../jobs";
import { paneKeys } from "../panekeys";
import { ErrorBox } from "../parts/ErrorBox";
import { bytesText, timeText } from "../parts/figures";
import type { PaneProps } from "../panes/props";
import type { Here } from "../refs";
import { point, reachIn, show } from "../state";
import { percent } from "../story/shares";
import type { Overview, PartCost, StepCost, TokenCosts } from "../wire";

/** The server's name of the measurement (src/clew/explorer/actions/tokens.py). */
const MEASUREMENT = "tokens";

export function TokensPane({ pane, build }: PaneProps) {
  const overview = value(build.overview.value);
  if (!overview) return <p class="empty">Loading …</p>;
  if (!overview.measured.includes(MEASUREMENT)) return <NoTokens build={build} />;
  const asked = build.ask("tokens").value;
  if (asked.state === "failed") return <ErrorBox error={asked.error} />;
  if (asked.state === "loading") return <p class="empty">Loading …</p>;
  return <Measured pane={pane.key} build={build} overview={overview} costs={asked.value} />;
}

function NoTokens({ build }: { readonly build: Build }) {
  return (
    <div class="not-measured">
      <p>The cost of a token has not been measured yet.</p>
      {build.source.live ? (
        <>
          <TokensButton build={build} />
          <p class="dim">
            Runs a decode step after 256 tokens, and a prompt of 256 tokens. Needs a language model that keeps caches, with free sizes.
          </p>
        </>
      ) : (
        <p class="dim">This report was written without it.</p>
      )}
    </div>
  );
}

function TokensButton({ build, again = false }: { readonly build: Build; readonly again?: boolean }) {
  const running = isRunning(build.id, MEASURING_TOKENS);
  return (
    <button class={again ? "quiet" : "primary"} disabled={running} onClick={() => void measureTokens(build.id)}>
      {running ? "Measuring …" : again ? "Measure again" : "Measure"}
    </button>
  );
}

interface MeasuredProps {
  readonly pane: number;
  readonly build: Build;
  readonly overview: Overview;
  readonly costs: TokenCosts;
}

function Measured({ pane, build, overview, costs }: MeasuredProps) {
  const box = useRef<HTMLDivElement>(null);
  const { decode } = costs;
  const rows = [...costs.decode.parts, ...costs.prefill.parts];
  const cursor = useRef(-1);
  const at = (row: PartCost | undefined): Here | null => {
    const name = overview.layers[row?.layers[0] ?? -1]?.name;
    return name === undefined ? null : { build: build.id, ref: { kind: "layer", name } };
  };
  const enter = (row: PartCost | undefined): void => point(at(row));
  const choose = (row: PartCost | undefined, beside = false): void => {
    const there = at(row);
    if (there) show(there, beside);
  };
  useEffect(
    () =>
      paneKeys(pane, {
        move(by) {
          cursor.current = Math.min(rows.length - 1, Math.max(0, cursor.current + by));
          enter(rows[cursor.current]);
          box.current?.querySelectorAll("tbody tr")[cursor.current]?.scrollIntoView({ block: "nearest" });
        },
        choose: () => choose(rows[cursor.current]),
        text: () => asText(costs),
      }),
    [costs, overview],
  );
  return (
    <div class="tokens-pane" ref={box} onMouseLeave={() => point(null)}>
      <p class="tokens-more">
        One more token: <b>{bytesText(costs.token_bytes)}</b> of cache and <b>{timeText(decode.ns)}</b> after {decode.length} tokens
        {costs.slope_us > 0 && <>, {timeText(costs.slope_us * 1e3)} more for each further token</>}.
      </p>
      <p class="dim">
        Memory: {bytesText(costs.weight_bytes)} of weights, {bytesText(costs.token_bytes)} of caches per token,{" "}
        {bytesText(costs.state_bytes)} of other states, {bytesText(decode.arena_bytes)} of intermediate values.
      </p>
      {[decode, costs.prefill].map((step, n) => (
        <Step key={n} build={build} title={titleOf(step, n)} step={step} enter={enter} choose={choose} />
      ))}
      {build.source.live && <TokensButton build={build} again />}
    </div>
  );
}

interface StepProps {
  readonly build: Build;
  readonly title: string;
  readonly step: StepCost;
  readonly enter: (row: PartCost) => void;
  readonly choose: (row: PartCost, beside: boolean) => void;
}

function Step({ build, title, step, enter, choose }: StepProps) {
  const lit = reachIn(build.id).value.layers;
  return (
    <table>
      <caption>
        {title}: {timeText(step.ns)}, {percent(step.bandwidth_share)} of the bandwidth of {step.gbps.toPrecision(3)} GB/s
      </caption>
      <thead>
        <tr>
          {HEADS.map(([text, about]) => (
            <th key={text} scope="col" title={about}>{text}</th>
          ))}
        </tr>
      </thead>
      <tbody>
        {step.parts.map((row) => (
          <tr
            key={row.layer}
            class={row.layers.some((layer) => lit.has(layer)) ? "own" : ""}
            onMouseEnter={() => enter(row)}
            onClick={(event) => choose(row, event.ctrlKey || event.metaKey)}
          >
            <th scope="row" title={row.layer}>
              {row.layers[0] !== undefined && <i style={{ backgroundColor: layerColor(row.layers[0]) }} />}
              <bdi>{row.layer}</bdi>
            </th>
            <td>{bytesText(row.weight_bytes)}</td>
            <td>{bytesText(row.cache_bytes)}</td>
            <td>{timeText(row.ns)}</td>
            <td>
              <i class="tokens-bar" style={{ width: `${Math.min(row.share, 1) * 100}%` }} />
              {percent(row.share)}
            </td>
            <td>{percent(row.bandwidth_share)}</td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

const HEADS = [
  ["Layer", "a layer of the decoder, or another layer"],
  ["Weights", "bytes of weights that must be read"],
  ["Caches", "bytes of caches that must be read"],
  ["Time", "time of its kernels"],
  ["Share", "share of the time of the call"],
  ["Bandwidth", "time to read the bytes at the machine's bandwidth, divided by the time"],
] as const;

function titleOf(step: StepCost, n: number): string {
  return n ? `Prompt of ${step.tokens} tokens` : `A token after ${step.length} tokens`;
}

function asText(costs: TokenCosts): string {
  const of = (step: StepCost, n: number) =>
    [titleOf(step, n), HEADS.map(([text]) => text).join("\t"), ...step.parts.map(line)].join("\n");
  return [costs.decode, costs.prefill].map(of).join("\n\n");
}

function line(row: PartCost): string {
  const figures = [bytesText(row.weight_bytes), bytesText(row.cache_bytes), timeText(row.ns), percent(row.share)];
  return [row.layer, ...figures, percent(row.bandwidth_share)].join("\t");
}
