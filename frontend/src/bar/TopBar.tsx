// The top bar: build, search, color, commands, help.

import { names } from "../parts/names";
import { builds, value, type Build } from "../builds";
import { keyLabel } from "../keyboard";
import { Icon } from "../parts/Icon";
import { current, dialog, story, type Dialog } from "../state";
import type { Options } from "../wire";
import { HeatSelect } from "./HeatSelect";
import { Jobs } from "./Jobs";
import { ShareMenu } from "./ShareMenu";
import { ThemeToggle } from "./ThemeToggle";

export function TopBar({ build }: { readonly build: Build | null }) {
  return (
    <header class="bar">
      <h1>clew</h1>
      {build && <Which build={build} />}
      <span class="grow" />
      <Jobs />
      <Opens what="search" label="Search" keys="/" />
      {build && <HeatSelect />}
      {build?.source.live && (
        <button title="Another target, precision, pass list … or another model (b)" onClick={() => (dialog.value = "build")}>
          <Icon name="play" /> <span class="wide-only">Try it</span>
        </button>
      )}
      <ShareMenu live={build?.source.live ?? false} />
      <ThemeToggle />
      <button
        class="icon-only"
        aria-pressed={story.value}
        aria-label="Story"
        title="Story of the selection (s)"
        onClick={() => (story.value = !story.value)}
      >
        <Icon name="story" />
      </button>
      <button class="icon-only" aria-label="Help" title="Help and keys (?)" onClick={() => (dialog.value = "help")}>
        <Icon name="help" />
      </button>
    </header>
  );
}

function Opens({ what, label, keys }: { readonly what: Dialog; readonly label: string; readonly keys: string }) {
  return (
    <button class="opens" aria-label={label} onClick={() => (dialog.value = what)}>
      <Icon name="search" /> <span>{label}</span> <kbd>{keyLabel(keys)}</kbd>
    </button>
  );
}

/** The model and its options; a menu if there are several builds. */
function Which({ build }: { readonly build: Build }) {
  const all = builds.value;
  const { options, model, state } = build.info.value;
  const built = value(build.overview.value)?.options ?? options;
  return (
    <>
      {all.length > 1 ? (
        <select aria-label="Build" value={build.id} onChange={(event) => (current.value = event.currentTarget.value)}>
          {all.map((b) => (
            <option key={b.id} value={b.id}>
              {b.id.toUpperCase()} {b.info.value.model} ({short(b.info.value.options)})
              {b.info.value.state !== "ready" && `: ${b.info.value.state}`}
            </option>
          ))}
        </select>
      ) : (
        <b class="model" title={model}>{model}</b>
      )}
      {all.length < 2 && <span class="options" title={long(built)}>{short(built)}</span>}
      {state !== "ready" && <span class="options">{state}</span>}
    </>
  );
}

/** Options in short: `cpu · f32 · O3 · 2 threads`. */
export function short(options: Options): string {
  const { target, precision, opt_level, threads, fuse, disabled } = options;
  const parts = [target, precision, `O${opt_level}`];
  if (threads) parts.push(`${threads} ${threads === 1 ? "thread" : "threads"}`);
  if (!fuse) parts.push("not fused");
  if (disabled.length) parts.push(`without ${disabled.length} ${disabled.length === 1 ? "pass" : "passes"}`);
  if (options.backends.length) parts.push(options.backends.join(" + "));
  return parts.join(" · ");
}

function long(options: Options): string {
  const { disabled, required, keep_f32, extend, schedules, shapes, sizes } = options;
  const lines = [short(options)];
  if (disabled.length) lines.push(`without ${disabled.join(", ")}`);
  if (required.length) lines.push(`with ${required.join(", ")}`);
  if (keep_f32.length) lines.push(`kept in f32: ${names(keep_f32)}`);
  if (options.place.length) lines.push(`placed: ${options.place.join("; ")}`);
  if (extend.length) lines.push(`extended by ${extend.join(", ")}`);
  const replayed = Object.keys(schedules);
  if (replayed.length) lines.push(`saved schedules for ${replayed.join(", ")}`);
  for (const [name, dims] of Object.entries(shapes)) lines.push(`${name}: ${dims.join(" × ")}`);
  for (const [name, given] of Object.entries(sizes)) lines.push(`sizes ${name}: ${given}`);
  return lines.join("\n");
}
