// The frame of a pane: its kind, its stage or kernel, text or graph, and a menu.

import { useEffect, useRef, useState } from "preact/hooks";
import { buildOf, value, type Build } from "../builds";
import { BuildState } from "../build/BuildState";
import { BuildBadge } from "../compare/Badge";
import { layerColor } from "../colors";
import { focusedPane, keysOf } from "../panekeys";
import { close, open, panes, update, type Pane, type PaneKind } from "../state";
import { names } from "../parts/names";
import type { KernelInfo, Overview, StageInfo } from "../wire";
import { short, stageTitle } from "../strip/frames";
import { Chooser, type Choice } from "./Which";
import { COUNTED } from "./kinds";
import { DRAGGED, readDragged, writeDragged } from "./drag";
import { copyPane, savePane, savePaneDrawing } from "./exports";
import { become, drop, moveTo } from "./order";
import { REGISTRY } from "./registry";

import { sizeOf } from "./sizes";

export function PaneFrame({ pane, place }: { readonly pane: Pane; readonly place: number }) {
  const build = buildOf(pane.build);
  const shown = REGISTRY[pane.kind];
  const [over, setOver] = useState(false);
  if (!build) return null;
  const Body = pane.view === "graph" && shown.drawn ? shown.drawn : shown.text;
  return (
    <section
      class={over ? "pane over" : "pane"}
      style={{ flexGrow: sizeOf(pane.key) }}
      data-kind={pane.kind}
      data-key={pane.key}
      data-arg={pane.arg}
      data-focused={focusedPane.value === pane.key ? "" : undefined}
      aria-label={shown.title}
      onDragOver={(event) => {
        if (!event.dataTransfer?.types.includes(DRAGGED)) return;
        event.preventDefault();
        setOver(true);
      }}
      onDragLeave={() => setOver(false)}
      onDrop={(event) => {
        setOver(false);
        const dragged = readDragged(event.dataTransfer?.getData(DRAGGED));
        if (!dragged) return;
        event.preventDefault();
        event.stopPropagation();
        drop(pane, dragged);
      }}
    >
      <header>
        <span
          class="place"
          draggable
          title={`Pane ${place + 1}: press ${place + 1} to go to it, drag to move it`}
          onDragStart={(event) => event.dataTransfer?.setData(DRAGGED, writeDragged(pane.build, pane.kind, pane.arg, pane.key))}
        >
          {place + 1}
        </span>
        {/* A difference names both of its builds itself. */}
        {pane.kind !== "diff" && <BuildBadge build={build} />}
        <select
          class="kind"
          aria-label="Contents of the pane"
          value={pane.kind}
          style={{ width: `calc(${shown.title.length}ch + 34px)` }}
          onChange={(event) => become(pane, event.currentTarget.value as PaneKind)}
        >
          {(Object.keys(REGISTRY) as PaneKind[]).map((kind) => (
            <option key={kind} value={kind}>
              {REGISTRY[kind].title}
            </option>
          ))}
        </select>
        <Which pane={pane} build={build} />
        <span class="grow" />
        {shown.graph && (
          <button
            class="pane-icon"
            title={pane.view ? "Show as text" : "Show as graph"}
            data-view={pane.view || "text"}
            onClick={() => update(pane.key, { view: pane.view ? "" : "graph" })}
          >
            {pane.view ? "text" : "graph"}
          </button>
        )}
        <Menu pane={pane} place={place} />
        <button class="pane-icon" title="Close" aria-label="Close" onClick={() => close(pane.key)}>
          ×
        </button>
      </header>
      <div class="body">
        {build.info.value.state === "ready" ? <Body pane={pane} build={build} /> : <BuildState build={build} />}
      </div>
    </section>
  );
}

/** Chooses the stage or kernel that a pane shows. */
function Which({ pane, build }: { readonly pane: Pane; readonly build: Build }) {
  const overview = value(build.overview.value);
  const counted = COUNTED[pane.kind];
  if (!overview || !counted) return null;
  return (
    <Chooser
      label={counted}
      at={pane.arg}
      current={chosen(overview, counted, pane.arg)}
      choices={() => (counted === "stage" ? overview.stages.map((s) => stageChoice(s, overview)) : overview.kernels.map((k) => kernelChoice(k, overview)))}
      onChoose={(arg, beside) => {
        if (beside) open(build.id, pane.kind, arg, pane.view, true);
        else update(pane.key, { arg });
      }}
    />
  );
}

function chosen(overview: Overview, counted: "stage" | "kernel", at: number): Choice | undefined {
  const [stage, kernel] = [overview.stages[at], overview.kernels[at]];
  if (counted === "stage") return stage && stageChoice(stage, overview);
  return kernel && kernelChoice(kernel, overview);
}

function stageChoice(s: StageInfo, overview: Overview): Choice {
  const changes = [s.added && `+${short(s.added)}`, s.removed && `−${short(s.removed)}`, s.rewritten && `~${short(s.rewritten)}`];
  const detail = s.index === 0 ? "" : s.changed ? changes.filter(Boolean).join(" ") : "unchanged";
  return { at: s.index, text: `${s.index} ${stageTitle(overview, s.index)}`, detail, dim: !s.changed, colors: [] };
}

function kernelChoice(k: KernelInfo, overview: Overview): Choice {
  return {
    at: k.index,
    text: `${k.index} ${k.name}`,
    detail: names(k.layers.map((layer) => overview.layers[layer]?.name ?? ""), " "),
    dim: false,
    colors: k.layers.slice(0, 4).map((layer) => layerColor(layer)),
  };
}

interface MenuProps {
  readonly pane: Pane;
  readonly place: number;
}

/** Rarely used commands: saving, moving. */
function Menu({ pane, place }: MenuProps) {
  const [opened, setOpened] = useState(false);
  const holder = useRef<HTMLSpanElement>(null);
  useEffect(() => {
    if (!opened) return undefined;
    holder.current?.querySelector<HTMLElement>(".pane-menu button")?.focus();
    const outside = (event: Event) => {
      if (holder.current && !event.composedPath().includes(holder.current)) setOpened(false);
    };
    addEventListener("pointerdown", outside, true);
    return () => removeEventListener("pointerdown", outside, true);
  }, [opened]);
  const can = keysOf(pane.key);
  const entries: [string, boolean, () => unknown][] = [
    ["Save as text", can.text !== undefined, () => savePane(pane)],
    ["Copy all text", can.text !== undefined, () => copyPane(pane)],
    ["Save as SVG", can.svg !== undefined, () => savePaneDrawing(pane)],
    ["Move left", place > 0, () => moveTo(pane.key, place - 1)],
    ["Move right", place < panes.value.length - 1, () => moveTo(pane.key, place + 1)],
    ["Open another beside", true, () => open(pane.build, pane.kind, pane.arg, pane.view, true)],
  ];
  const keys = (event: KeyboardEvent) => {
    const by = event.key === "ArrowDown" ? 1 : event.key === "ArrowUp" ? -1 : 0;
    const all = [...(holder.current?.querySelectorAll<HTMLElement>(".pane-menu button") ?? [])];
    if (by && all.length) all[(all.indexOf(document.activeElement as HTMLElement) + by + all.length) % all.length]?.focus();
    else if (event.key === "Escape" && opened) {
      setOpened(false);
      holder.current?.querySelector<HTMLElement>("button")?.focus();
    } else return;
    event.preventDefault();
    event.stopPropagation();
  };
  const box = holder.current?.getBoundingClientRect();
  return (
    <span ref={holder} onKeyDown={keys}>
      <button
        class="pane-icon"
        title="Save, move"
        aria-label="More"
        aria-haspopup="menu"
        aria-expanded={opened}
        onClick={() => setOpened(!opened)}
      >
        ⋯
      </button>
      {opened && (
        <div class="pane-menu" role="menu" style={{ right: `${innerWidth - (box?.right ?? 0)}px`, top: `${(box?.bottom ?? 0) + 3}px` }}>
          {entries
            .filter(([, possible]) => possible)
            .map(([text, , act]) => (
              <button
                key={text}
                role="menuitem"
                onClick={() => {
                  setOpened(false);
                  void act();
                }}
              >
                {text}
              </button>
            ))}
        </div>
      )}
    </span>
  );
}
