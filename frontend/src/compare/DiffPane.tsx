// Two builds side by side: a summary of the differences, then layer by layer.

import { useState } from "preact/hooks";
import { builds, theSource, value, type Build } from "../builds";
import { jobs } from "../jobs";
import { titleOf } from "../build/builder";
import { optionWords } from "../build/options";
import type { PaneProps } from "../panes/props";
import { timeText } from "../parts/figures";
import { ErrorBox } from "../parts/ErrorBox";
import { Progress } from "../parts/Progress";
import { update, type Pane } from "../state";
import type { Diff } from "../wire";
import { letter } from "./Badge";
import { ChangeTable } from "./ChangeTable";
import { Faster } from "./Faster";
import { compare, diffOf, diffTitle, inOrder, partner, retry } from "./diffs";

/** A difference goes from the earlier build to the later one, whichever the pane was opened for. */
export function DiffPane({ pane, build }: PaneProps) {
  const other = partner(build, pane.arg);
  if (!other) {
    return <p class="empty">There is only one build. Compile the model with other options to compare two builds here.</p>;
  }
  const [a, b] = inOrder(build, other);
  return (
    <div class="diff">
      <p class="pair">
        <Side pane={pane} build={a} beside={b} free={a === other} /> <span aria-label="to">→</span>{" "}
        <Side pane={pane} build={b} beside={a} free={b === other} />
      </p>
      <Body pane={pane} a={a} b={b} />
    </div>
  );
}

interface SideProps {
  readonly pane: Pane;
  readonly build: Build;
  readonly beside: Build;
  /** Whether this side is selectable: the one that the pane's own build is compared with. */
  readonly free: boolean;
}

/** One of the builds that stand side by side. */
function Side({ pane, build, beside, free }: SideProps) {
  const others = builds.value.filter((x) => x !== beside);
  if (!free || others.length < 2) return <BuildName build={build} beside={beside} />;
  return (
    <select
      aria-label="compared with"
      value={builds.value.indexOf(build)}
      onChange={(event) => update(pane.key, { arg: Number(event.currentTarget.value) })}
    >
      {others.map((x) => (
        <option key={x.id} value={builds.value.indexOf(x)}>
          {`${letter(x.id)} ${nameOf(x, beside)}`}
        </option>
      ))}
    </select>
  );
}

/** A build's name beside another's: includes the model if the models differ. */
function nameOf(build: Build, beside: Build): string {
  const { model, options } = build.info.value;
  const words = optionWords(options);
  return model === beside.info.value.model ? words : `${model} (${words})`;
}

function BuildName({ build, beside }: { readonly build: Build; readonly beside: Build }) {
  return (
    <span class="build-name" title={titleOf(build)}>
      <b class={`badge of-${build.id}`}>{letter(build.id)}</b> {nameOf(build, beside)}
    </span>
  );
}

function Body({ pane, a, b }: { readonly pane: Pane; readonly a: Build; readonly b: Build }) {
  const waiting = [a, b].find((build) => build.info.value.state !== "ready");
  if (waiting) return <p class="empty">{`Build ${letter(waiting.id)} is not ready: ${waiting.info.value.state}.`}</p>;
  const running = jobs.value.find((job) => job.state !== "done" && job.title === diffTitle(a.id, b.id));
  if (running) return <Progress job={running} />;
  const state = diffOf(a.id, b.id);
  if (state.state === "loading") return <p class="empty">Asking for the difference …</p>;
  if (state.state === "failed") {
    return (
      <>
        <ErrorBox error={state.error} />
        {theSource().live && <button onClick={() => retry(a.id, b.id)}>Try again</button>}
      </>
    );
  }
  if (!state.value) return <Ask a={a} b={b} />;
  const overviews = { a: value(a.overview.value), b: value(b.overview.value) };
  if (!overviews.a || !overviews.b) return <p class="empty">Loading both builds …</p>;
  return (
    <>
      <Summary diff={state.value} />
      <ChangeTable pane={pane} a={a} b={b} layersA={overviews.a.layers} layersB={overviews.b.layers} diff={state.value} />
    </>
  );
}

/** Offers to compute the difference, and says what takes long about it. */
function Ask({ a, b }: { readonly a: Build; readonly b: Build }) {
  const [time, setTime] = useState(true);
  const [numerics, setNumerics] = useState(true);
  if (!theSource().live) return <p class="empty">The report does not hold this difference.</p>;
  return (
    <form
      class="ask"
      onSubmit={(event) => {
        event.preventDefault();
        void compare(a.id, b.id, time, numerics);
      }}
    >
      <p>These builds have not been compared yet. Layers are aligned by name, operators and weights.</p>
      <label>
        <input type="checkbox" checked={time} onChange={() => setTime(!time)} /> run both and compare times
      </label>
      <label>
        <input type="checkbox" checked={numerics} onChange={() => setNumerics(!numerics)} /> compare values layer by layer
      </label>
      <button class="primary" data-action="compare">
        Compare {letter(a.id)} and {letter(b.id)}
      </button>
    </form>
  );
}

function Summary({ diff }: { readonly diff: Diff }) {
  const { a_wall_ns: before, b_wall_ns: after } = diff;
  const timed = before !== null && after !== null;
  const [head = "", ...rest] = diff.summary;
  const sentences = timed ? diff.summary : rest;
  return (
    <details class="summary" open={innerHeight > 900}>
      <summary>
        {timed ? (
          <span class="walls">
            <b>{timeText(before)}</b> → <b>{timeText(after)}</b> <Faster before={before} after={after} />
          </span>
        ) : (
          head
        )}
      </summary>
      <ul>
        {sentences.map((sentence, n) => (
          <li key={n}>{sentence}</li>
        ))}
      </ul>
    </details>
  );
}
