// The dialog for a new build: its model and options. During compilation, its progress.

import { useEffect, useMemo, useState } from "preact/hooks";
import { buildOf, builds, theSource, value } from "../builds";
import { Modal } from "../dialogs/Modal";
import { names } from "../parts/names";
import { jobs } from "../jobs";
import { bytesText } from "../parts/figures";
import { ErrorBox } from "../parts/ErrorBox";
import { Progress } from "../parts/Progress";
import { current, dialog } from "../state";
import type { Choices } from "../wire";
import { awaited, buildError, buildTitle, cancelSending, choices, chosenModel, compile, sending, startOptions, titleOf } from "./builder";
import { ChooseFile } from "./ChooseFile";
import { DEFAULTS, formOf, optionsOf, type Form } from "./options";
import { Passes } from "./Passes";

export function BuildDialog() {
  return (
    <Modal label="Compile a model" wide>
      <Inside />
    </Modal>
  );
}

function Inside() {
  const offers = choices();
  if (!theSource().live || !offers) {
    return <p class="empty">A report can neither compile nor measure. Start <code>clew explore</code> to try other models and options.</p>;
  }
  const build = awaited.value;
  if (build && build.info.value.state !== "ready") return <Compiling offers={offers} />;
  return <BuildForm offers={offers} />;
}

/** The progress of the build that was started here. */
function Compiling({ offers }: { readonly offers: Choices }) {
  const build = awaited.value;
  if (!build) return null;
  const { state, error } = build.info.value;
  const job = jobs.value.find((j) => j.state !== "done" && j.title === buildTitle(build));
  if (state !== "failed" && state !== "cancelled") {
    return (
      <section class="new-build" aria-label="Compiling">
          <h3>{titleOf(build)}</h3>
        {job ? <Progress job={job} /> : <p class="empty">Compiling …</p>}
        <p class="dim">You may close this dialog: the top bar shows the progress.</p>
      </section>
    );
  }
  return <BuildForm offers={offers} failed={state === "cancelled" ? "cancelled" : error} />;
}

interface Props {
  readonly offers: Choices;
  readonly failed?: import("../wire").ErrorInfo | "cancelled" | null;
}

function BuildForm({ offers, failed }: Props) {
  const shown = buildOf(current.value) ?? builds.value[0] ?? null;
  const info = awaited.value?.info.value ?? shown?.info.value;
  const [form, setForm] = useState<Form>(() => formOf(startOptions.peek() ?? info?.options ?? DEFAULTS));
  const model = chosenModel.value ?? info?.model ?? null;
  useEffect(() => {
    if (chosenModel.peek() === null && info) chosenModel.value = info.model;
    startOptions.value = null;
  }, []);
  const change = (to: Partial<Form>): void => setForm({ ...form, ...to });
  const [wrong, setWrong] = useState("");
  const share = sending.value;
  const inputs = useMemo(() => {
    const build = builds.value.find((b) => b.info.value.model === model && b.info.value.state === "ready");
    return build ? (value(build.overview.peek())?.inputs ?? []) : [];
  }, [model]);
  const submit = (event: Event): void => {
    event.preventDefault();
    const options = optionsOf(form);
    if (typeof options === "string") return setWrong(options);
    setWrong("");
    if (model !== null) void compile(model, options);
  };
  return (
    <form class="new-build" aria-label="New build" onSubmit={submit}>
      <div class="columns">
        <div class="fields">
          <Model offers={offers} model={model} />
          <label>
            target
            <select name="target" value={form.target} onChange={(e) => change({ target: e.currentTarget.value })}>
              {offers.targets.map((name) => <option key={name}>{name}</option>)}
            </select>
          </label>
          <label>
            precision
            <select name="precision" value={form.precision} onChange={(e) => change({ precision: e.currentTarget.value })}>
              {offers.precisions.map((name) => <option key={name}>{name}</option>)}
            </select>
          </label>
          <label>
            opt level
            <select name="opt-level" value={form.optLevel} onChange={(e) => change({ optLevel: Number(e.currentTarget.value) })}>
              {[0, 1, 2, 3].map((n) => <option key={n} value={n}>{`${n}${LEVELS[n]}`}</option>)}
            </select>
          </label>
          <label>
            threads
            <input
              name="threads"
              inputMode="numeric"
              placeholder={`all: ${offers.threads}`}
              value={form.threads}
              onInput={(e) => change({ threads: e.currentTarget.value })}
            />
          </label>
          <label class="check">
            <input name="fuse" type="checkbox" checked={form.fuse} onChange={(e) => change({ fuse: e.currentTarget.checked })} />
            fuse operators into kernels
          </label>
          <Added offers={offers} form={form} change={change} />
          <label>
            input shapes
            <input
              name="shapes"
              placeholder={inputs.length ? `${inputs[0]}=1x3x224x224` : "only for free sizes"}
              value={form.shapes}
              title="as input=1x3x224x224, several with blanks between"
              onInput={(e) => change({ shapes: e.currentTarget.value })}
            />
          </label>
          <label>
            sizes
            <input
              name="sizes"
              placeholder="batch=1 seq=128"
              value={form.sizes}
              title="of free dimensions by their names: seq=128 fixes a size"
              onInput={(e) => change({ sizes: e.currentTarget.value })}
            />
          </label>
          <Backends offers={offers} form={form} change={change} />
          {inputs.length > 0 && <p class="hint dim">inputs: {names(inputs)}</p>}
        </div>
        <Passes offers={offers} wishes={form.passes} onChange={(passes) => change({ passes })} />
      </div>
      {failed === "cancelled" && <p class="hint" role="status">Compiling was cancelled.</p>}
      {failed && failed !== "cancelled" && <ErrorBox error={failed} />}
      {buildError.value && <ErrorBox error={buildError.value} />}
      {wrong && <p class="wrong" role="alert">{wrong}</p>}
      <div class="build-actions">
        {share === null ? (
          <>
            <span class="grow" />
            <button type="button" onClick={() => (dialog.value = "")}>Close</button>
            <button class="primary" data-action="compile" disabled={model === null}>{failed ? "Compile again" : "Compile"}</button>
          </>
        ) : (
          <>
            <span>sending {Math.round(share * 100)} %</span>
            <progress value={share} max={1} aria-label="sending the model" />
            <button type="button" onClick={cancelSending}>Cancel</button>
          </>
        )}
      </div>
    </form>
  );
}

/** The backends that take parts of the model, and who gets what. */
function Backends({ offers, form, change }: { readonly offers: Choices; readonly form: Form; readonly change: (to: Partial<Form>) => void }) {
  const known = [...new Set([...offers.backends, ...form.backends])];
  return (
    <>
      <fieldset class="backends">
        <legend title="the first one chooses first">other backends</legend>
        {known.map((name) => {
          const place = form.backends.indexOf(name);
          return (
            <label key={name} class="check">
              <input
                name="backend"
                type="checkbox"
                checked={place >= 0}
                onChange={(e) => change({ backends: e.currentTarget.checked ? [...form.backends, name] : form.backends.filter((b) => b !== name) })}
              />
              {name}{place >= 0 && form.backends.length > 1 ? ` (${place + 1})` : ""}
            </label>
          );
        })}
      </fieldset>
      <label>
        place
        <input
          name="place"
          placeholder="first, auto, or onnxruntime=conv1,block1/*"
          value={form.place}
          title="first: each backend takes what it can; auto: measured costs decide; or layers by backend, as onnxruntime=conv1,block1/*; openvino=fc"
          onInput={(e) => change({ place: e.currentTarget.value })}
        />
      </label>
    </>
  );
}

/** Extension files given to `clew explore`, and replayed schedules. */
function Added({ offers, form, change }: { readonly offers: Choices; readonly form: Form; readonly change: (to: Partial<Form>) => void }) {
  const without = (name: string): Form["schedules"] => Object.fromEntries(Object.entries(form.schedules).filter(([key]) => key !== name));
  return (
    <>
      {offers.extensions.map((file) => (
        <label key={file} class="check">
          <input
            name="extend"
            type="checkbox"
            checked={form.extend.includes(file)}
            onChange={(e) => change({ extend: e.currentTarget.checked ? [...form.extend, file] : form.extend.filter((f) => f !== file) })}
          />
          extend by {file}
        </label>
      ))}
      {Object.keys(form.schedules).map((name) => (
        <label key={name} class="check">
          <input name="schedule" type="checkbox" checked onChange={() => change({ schedules: without(name) })} />
          replay the saved schedule of {name}
        </label>
      ))}
    </>
  );
}

const LEVELS: Readonly<Record<number, string>> = { 0: " — only required passes", 3: " — everything" };

/** Selects the model: one that the server knows, or a file. */
function Model({ offers, model }: { readonly offers: Choices; readonly model: string | readonly File[] | null }) {
  const files = model === null || typeof model === "string" ? null : model;
  const names = typeof model === "string" && !offers.models.includes(model) ? [...offers.models, model] : offers.models;
  return (
    <div class="model-choice">
      <label>
        model
        <select
          name="model"
          value={typeof model === "string" ? model : files ? FILE : ""}
          onChange={(event) => (chosenModel.value = event.currentTarget.value === FILE ? files : event.currentTarget.value)}
        >
          {model === null && <option value="">choose one, or drop a file</option>}
          {files && <option value={FILE}>{filesText(files)}</option>}
          {names.map((name) => <option key={name} value={name}>{name}</option>)}
        </select>
      </label>
      <ChooseFile text={files ? "Choose another file" : "Choose or drop a file"} />
    </div>
  );
}

const FILE = "\u0000file";

function filesText(files: readonly File[]): string {
  const bytes = bytesText(files.reduce((sum, file) => sum + file.size, 0));
  const more = files.length > 1 ? ` and ${files.length - 1} of weights` : "";
  return `${files[0]?.name ?? ""}${more} (${bytes})`;
}
