// The value that a layer computed in a run: statistics and first elements, in loops per iteration.
// Values are requested only when the user opens them, because the model must run.

import { useEffect, useState } from "preact/hooks";
import { errorInfo, LOADING, value, type Asked, type Build } from "../builds";
import { digits } from "../parts/figures";
import { ErrorBox } from "../parts/ErrorBox";
import { RefLink } from "../parts/RefLink";
import { result, iteration, values } from "../state";
import type { Values as Shown } from "../wire";
import { Stepper } from "./Stepper";
import { nearest } from "./iterations";

export function Values({ build, layer }: { readonly build: Build; readonly layer: string }) {
  const open = values.value;
  return (
    <section class="values" aria-label="Values">
      <button class="values-head" aria-expanded={open} onClick={() => (values.value = !open)}>
        {open ? "▾" : "▸"} Values
      </button>
      {open && <Held key={`${build.id}/${layer}`} build={build} layer={layer} />}
    </section>
  );
}

/** The available iterations of a result; `null` stands for all. */
interface Known {
  readonly output: number;
  readonly held: readonly number[] | null;
}

function Held({ build, layer }: { readonly build: Build; readonly layer: string }) {
  const [known, setKnown] = useState<Known | null>(null);
  const output = result.value;
  useEffect(() => {
    let wanted = true;
    void build.source.iterations(build.id, output, layer).then((held) => wanted && setKnown({ output, held }));
    return () => (wanted = false);
  }, [output]);
  if (known?.output !== output) return <p class="empty">Reading …</p>;
  return <Value build={build} layer={layer} output={output} held={known.held} />;
}

interface ValueProps {
  readonly build: Build;
  readonly layer: string;
  readonly output: number;
  readonly held: readonly number[] | null;
}

function Value({ build, layer, output, held }: ValueProps) {
  const [attempt, setAttempt] = useState(0);
  const [asked, setAsked] = useState<Asked<Shown>>(LOADING);
  // The old value stays until the next one arrives, so stepping does not flicker.
  const [last, setLast] = useState<Shown | null>(null);
  const wished = iteration.value;
  const which = wished === null ? "last" : held ? (held.length ? nearest({ total: 0, held }, wished) : "last") : wished;
  useEffect(() => {
    let wanted = true;
    setAsked(LOADING);
    build.source.get<"values">(build.id, `values/${which}/${output}/${layer}`).then(
      (answer) => {
        if (!wanted) return;
        setLast(answer);
        setAsked({ state: "ready", value: answer });
      },
      (error: unknown) => wanted && setAsked({ state: "failed", error: errorInfo(error) }),
    );
    return () => (wanted = false);
  }, [which, output, attempt]);
  if (asked.state === "failed") {
    return (
      <>
        <ErrorBox error={asked.error} />
        {build.source.live && <button onClick={() => setAttempt(attempt + 1)}>Ask again</button>}
      </>
    );
  }
  const shown = asked.state === "ready" ? asked.value : last;
  if (!shown) return <p class="empty">Running the model …</p>;
  return (
    <div class="value" data-state={asked.state} data-iteration={shown.iteration + 1}>
      {shown.outputs.length > 1 && <Outputs outputs={shown.outputs} output={output} />}
      {shown.iterations > 0 && (
        <>
          <Stepper iterations={{ total: shown.iterations, held }} at={shown.iteration} onIteration={(to) => (iteration.value = to)} />
          <Where build={build} shown={shown} />
          {held && held.length < shown.iterations && <p class="dim">{`This report has ${held.length} of ${shown.iterations} iterations: clew explore shows all.`}</p>}
        </>
      )}
      <Statistics shown={shown} />
    </div>
  );
}

function Outputs({ outputs, output }: { readonly outputs: readonly number[]; readonly output: number }) {
  return (
    <label class="value-result">
      result{" "}
      <select value={output} onChange={(event) => (result.value = Number(event.currentTarget.value))}>
        {outputs.map((one) => (
          <option key={one} value={one}>
            {one}
          </option>
        ))}
      </select>
    </label>
  );
}

/** The loops that an iteration belongs to; for nested loops, the iteration of each. */
function Where({ build, shown }: { readonly build: Build; readonly shown: Shown }) {
  const layers = value(build.overview.value)?.layers ?? [];
  if (shown.in_branch) return <p class="dim">Only iterations that took its branch count.</p>;
  if (!shown.path.length) return <p class="dim">Counted over all iterations of the loops around it: only the run determines the trip count of each.</p>;
  const several = shown.path.length > 1;
  return (
    <p class="dim iteration-path">
      {shown.path.map(({ loop, iteration: at, iterations }, n) => (
        <span key={loop}>
          {n > 0 && ", in it "}
          {several && `iteration ${at + 1}${iterations === null ? "" : ` of ${iterations}`} of `}
          {!several && "of the loop "}
          <RefLink build={build.id} to={`layer:${layers[loop]?.name ?? ""}`} code>
            {layers[loop]?.name}
          </RefLink>
        </span>
      ))}
    </p>
  );
}

function Statistics({ shown }: { readonly shown: Shown }) {
  const rows: readonly (readonly [string, string])[] = [
    ["type", shown.type],
    ["least", figure(shown.least)],
    ["most", figure(shown.most)],
    ["mean", figure(shown.mean)],
    ["deviation", figure(shown.deviation)],
    ["zeros", shown.least === null ? "" : `${shown.zeros} of ${shown.elements}`],
    ["NaN", shown.nans ? String(shown.nans) : ""],
    ["infinite", shown.infinities ? String(shown.infinities) : ""],
  ];
  const tallest = Math.max(1, ...shown.histogram);
  const rest = shown.elements - shown.sample.length;
  return (
    <>
      {shown.histogram.length > 0 && (
        <div class="histogram" role="img" aria-label={`Elements from ${figure(shown.least)} to ${figure(shown.most)}`}>
          {shown.histogram.map((count, n) => (
            <i key={n} style={{ height: `${(100 * count) / tallest}%` }} />
          ))}
        </div>
      )}
      <dl>
        {rows.filter(([, text]) => text).map(([name, text]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd data-figure={name}>{text}</dd>
          </div>
        ))}
      </dl>
      <p class="value-sample">
        <code>{shown.sample.join("  ")}</code>
        {rest > 0 && <span class="dim">{` and ${rest.toLocaleString("en")} more`}</span>}
      </p>
    </>
  );
}

function figure(x: number | null): string {
  if (x === null) return "";
  const size = Math.abs(x);
  return size !== 0 && (size < 0.01 || size >= 1e6) ? x.toExponential(3) : digits(x).includes(".") ? String(Number(x.toPrecision(5))) : String(Number(x.toPrecision(6)));
}
