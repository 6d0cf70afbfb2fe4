// A pane as a graph: the model's layers, or a stage's operators.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { effect } from "@preact/signals";
import type { PaneProps } from "../panes/props";
import { value } from "../builds";
import { heatColor } from "../heat";

import { paneKeys } from "../panekeys";
import { go, hover, point, reachIn, reveal, selected, theme } from "../state";
import { GraphCanvas } from "./canvas";
import { changesOf } from "./changes";
import { dataOf, type Data } from "./data";
import { graphKeys } from "./keys";
import { layOut } from "./layout";
import { readLook } from "./look";
import { measureText } from "./measureText";
import { toPlace } from "./measure";
import type { Placed, ToPlace } from "./place";
import { Scene, type Hit } from "./scene";
import { heatOf, hitsOf, layersOf, type Shown } from "./shown";
import { sayHit, sayItem, sentence, type Said } from "./say";
import { svgOf } from "./svg";
import { allClusters, collapsedAtFirst, makeView } from "./visible";

/** The collapsed clusters of each graph, kept while the page is open. */
const collapsedIn = new Map<string, ReadonlySet<string>>();

const drawn = new Map<number, () => string>();

/** The graph of a pane as an SVG document, null for panes that show none. */
export function graphSvg(key: number): string | null {
  return drawn.get(key)?.() ?? null;
}

export function GraphPane({ pane, build }: PaneProps) {
  const data = dataOf(pane, build);
  const stage = pane.kind === "stage" ? build.stage(pane.arg).value : build.overview.value;
  if (stage.state === "failed") return <p class="empty">{stage.error.message}</p>;
  if (!data) return <p class="empty">Loading …</p>;
  if (!data.graph.nodes.length) return <p class="empty">The graph is empty.</p>;
  return <Drawn key={data.key} pane={pane} build={build} data={data} />;
}

interface Tip {
  readonly said: Said;
  readonly x: number;
  readonly y: number;
}

function Drawn({ pane, build, data }: PaneProps & { readonly data: Data }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const mini = useRef<HTMLCanvasElement>(null);
  const [collapsed, setCollapsed] = useState(() => collapsedIn.get(data.key) ?? collapsedAtFirst(data.graph));
  const [constants, setConstants] = useState(false);
  const [differs, setDiffers] = useState(false);
  const [progress, setProgress] = useState<number | null>(null);
  const [failed, setFailed] = useState("");
  const [tip, setTip] = useState<Tip | null>(null);
  const [spoken, setSpoken] = useState("");
  const [scene, setScene] = useState<Scene | null>(null);
  const at = useRef({
    view: null as GraphCanvas | null, scene: null as Scene | null, shown: null as Shown | null,
    key: -1, pointed: null as Hit | null, anchor: null as Anchor | null, said: null as Said | null,
  }).current;
  const ref = { build: data.build, stage: data.stage ? pane.arg : null };

  const collapse = (next: ReadonlySet<string>, anchor?: string) => {
    collapsedIn.set(data.key, next);
    at.anchor = anchor && at.view && at.scene ? anchorOf(at.view, at.scene, anchor) : null;
    setCollapsed(next);
  };
  const toggle = (key: string) => {
    const next = new Set(collapsed);
    if (!next.delete(key)) next.add(key);
    collapse(next, key);
  };

  const view = useMemo(() => makeView(data.graph, collapsed, constants), [data, collapsed, constants]);

  useEffect(() => {
    let input: ToPlace | null = null;
    const make = () => (input ??= toPlace(view, measureText));
    const key = `${data.key} ${constants} ${[...collapsed].sort().join("\n")}`;
    setFailed("");
    const begun = performance.now();
    const slow = setTimeout(() => setProgress(0), 150);
    const pending = layOut(key, make, (share) => setProgress((was) => (was === null ? was : share)));
    pending.placed.then(
      (placed) => {
        clearTimeout(slow);
        setProgress(null);
        const { width, height } = make();
        const made = new Scene(view, placed, width, height);
        at.key = -1;
        at.pointed = null;
        at.said = null;
        place(at, made, placed);
        setScene(made);
        if (canvas.current) {
          canvas.current.dataset["layout"] = `${placed.by} ${Math.round(performance.now() - begun)} ms`;
          canvas.current.dataset["items"] = String(view.items.length);
        }
      },
      (error: unknown) => {
        clearTimeout(slow);
        setProgress(null);
        setFailed(error instanceof Error ? error.message : String(error));
      },
    );
    return () => {
      clearTimeout(slow);
      pending.cancel();
    };
  }, [view]);

  // The canvas follows the focus, the heat and the theme without a new render.
  useEffect(() => {
    if (!scene) return;
    const layers = layersOf(scene);
    let look = readLook();
    let dark = theme.peek();
    const scheme = matchMedia("(prefers-color-scheme: light)");
    const recolor = () => {
      look = readLook();
      update({ look });
    };
    const update = (change: Partial<Shown>) => {
      at.shown = { ...(at.shown as Shown), ...change };
      at.view?.show(at.shown);
    };
    at.shown = {
      scene, look, layers, heat: null, hits: null, clusterHits: null, changes: null, key: at.key, pointed: at.pointed,
    };
    const stopHits = effect(() => {
      const found = hitsOf(scene, reachIn(build.id).value, ref.stage);
      update({ hits: found?.items ?? null, clusterHits: found?.clusters ?? null });
    });
    const stopHeat = effect(() => update({ heat: heatOf(scene, build.id, heatColor.value) }));
    const stopTheme = effect(() => {
      if (theme.value === dark) return;
      dark = theme.value;
      recolor();
    });
    scheme.addEventListener("change", recolor);
    return () => {
      stopHits();
      stopHeat();
      stopTheme();
      scheme.removeEventListener("change", recolor);
    };
  }, [scene]);

  useEffect(() => {
    if (!scene) return;
    let over = false;
    const stop = effect(() => {
      const stage = data.stage;
      const before = stage && differs && stage.index > 0 ? value(build.stage(stage.index - 1).value) : null;
      const links = value(build.links.value);
      const changes = stage && before && links ? changesOf(data.graph.nodes, stage, before, links) : null;
      const marked = changes && scene.view.items.map((item) => item.holds.map((node) => changes[node] ?? "").find(Boolean) ?? "");
      if (over || !at.shown) return;
      at.shown = { ...at.shown, changes: marked };
      at.view?.show(at.shown);
    });
    return () => {
      over = true;
      stop();
    };
  }, [scene, differs]);

  const act = useRef({ toggle, scene, data, tip: setTip, speak: setSpoken });
  act.current = { toggle, scene, data, tip: setTip, speak: setSpoken };

  useEffect(() => {
    if (!canvas.current || !mini.current) return;
    const emphasize = (change: Partial<Pick<Shown, "key" | "pointed">>) => {
      if (!at.shown) return;
      at.shown = { ...at.shown, ...change };
      at.view?.show(at.shown);
    };
    const refOf = (hit: Hit | null) => {
      const found = at.scene?.view;
      if (!hit || !found || hit.kind === "edge") return null;
      if (hit.kind === "cluster") return found.clusters[hit.at]?.ref ?? null;
      const item = found.items[hit.at];
      return item?.node?.ref ?? item?.cluster?.ref ?? null;
    };
    const pointAt = (hit: Hit | null, x: number, y: number) => {
      if (!sameHit(hit, at.pointed)) {
        at.pointed = hit;
        at.said = hit && at.scene ? sayHit(at.scene, hit, data.overview, data.remarks) : null;
        emphasize({ pointed: hit });
        const target = refOf(hit);
        point(target ? { build: data.build, ref: target } : null);
        if (canvas.current) canvas.current.style.cursor = target || hit?.kind === "item" ? "pointer" : "grab";
      }
      // Things with a label need no tooltip while the pointer passes through them.
      const { said } = at;
      act.current.tip(said && !(hit?.kind === "cluster" && hit.part === "inside") ? { said, x, y } : null);
    };
    const choose = (hit: Hit, twice: boolean) => {
      const found = at.scene?.view;
      if (!found) return;
      const target = refOf(hit);
      if (hit.kind === "item") {
        const cluster = found.items[hit.at]?.cluster;
        if (cluster && (twice || !target)) act.current.toggle(cluster.key);
        else if (target && !twice) go({ build: data.build, ref: target }, pane.key);
      } else if (hit.kind === "cluster") {
        const cluster = found.clusters[hit.at];
        const head = hit.part === "head" || hit.part === "mark";
        if (cluster && head && (twice || hit.part === "mark" || !target)) act.current.toggle(cluster.key);
        else if (target && !twice) go({ build: data.build, ref: target }, pane.key);
      }
    };
    const step = (by: number) => {
      const order = at.scene?.order;
      if (!order?.length || !at.scene) return false;
      const was = at.key < 0 ? (by > 0 ? -1 : order.length) : order.indexOf(at.key);
      const next = order[was + by];
      if (next === undefined) return false;
      at.key = next;
      emphasize({ key: next });
      at.view?.camera.show(at.scene.item(next), true);
      const target = refOf({ kind: "item", at: next });
      point(target ? { build: data.build, ref: target } : null);
      act.current.speak(sentence(sayItem(at.scene, next, data.overview, data.remarks), was + by + 1, order.length));
      return true;
    };
    const chooseKey = () => {
      if (at.key >= 0) choose({ kind: "item", at: at.key }, false);
      else if (at.pointed) choose(at.pointed, false);
    };
    const fold = () => {
      const found = at.scene?.view;
      const hit: Hit | null = at.key >= 0 ? { kind: "item", at: at.key } : at.pointed;
      if (!found || !hit || hit.kind === "edge") return;
      const item = hit.kind === "item" ? found.items[hit.at] : null;
      const cluster = item ? (item.cluster ?? found.clusters[item.inside]) : found.clusters[hit.at];
      if (cluster) act.current.toggle(cluster.key);
    };
    const blur = () => {
      at.key = -1;
      emphasize({ key: -1 });
    };
    const made = new GraphCanvas(canvas.current, mini.current, { pointed: pointAt, chosen: choose }, () => undefined);
    at.view = made;
    if (at.scene) place(at, at.scene, at.scene.placed);
    const stopKeys = graphKeys(canvas.current, made.camera, {
      step, choose: chooseKey, fold, leave: blur, whole: () => at.scene && { x: 0, y: 0, width: at.scene.placed.width, height: at.scene.placed.height },
    });
    const stopPane = paneKeys(pane.key, {
      move: (by) => void step(by), choose: chooseKey, fold, svg: () => (at.shown ? svgOf(at.shown) : ""),
    });
    drawn.set(pane.key, () => (at.shown ? svgOf(at.shown) : ""));
    return () => {
      made.close();
      stopKeys();
      stopPane();
      drawn.delete(pane.key);
      at.view = null;
      if (hover.peek()?.build === data.build) point(null);
    };
  }, []);

  // Moves to the selection of another pane or the URL.
  useEffect(() => {
    if (!scene) return;
    let first = true;
    return effect(() => {
      const wish = reveal.value;
      const chosen = first ? selected.peek() : (wish?.here ?? null);
      const from = first ? -1 : (wish?.from ?? -1);
      const animate = !first;
      first = false;
      if (!chosen || from === pane.key) return;
      const found = hitsOf(scene, reachIn(build.id).peek(), ref.stage);
      const hit = found?.items.indexOf(1) ?? -1;
      if (hit >= 0) at.view?.camera.show(scene.item(hit), animate);
    });
  }, [scene]);

  const whole = scene && { x: 0, y: 0, width: scene.placed.width, height: scene.placed.height };
  const anyClusters = data.graph.clusters.length > 0;
  return (
    <div class="graph">
      <div class="graph-view">
        <canvas
          ref={canvas}
          class="graph-canvas"
          tabIndex={0}
          role="application"
          aria-label={`Graph of ${pane.kind === "model" ? "the model" : data.stage?.name}: ${view.items.length} boxes. Tab goes from box to box, Enter chooses, f opens and closes.`}
        />
        <div class="graph-tools" role="toolbar" aria-label="Graph">
          <button title="Zoom in (+)" aria-label="Zoom in" onClick={() => at.view?.camera.zoom(1.3)}>+</button>
          <button title="Zoom out (−)" aria-label="Zoom out" onClick={() => at.view?.camera.zoom(1 / 1.3)}>−</button>
          <button title="Fit the graph, or its width (0)" aria-label="Fit" onClick={() => whole && at.view?.camera.whole(whole, true)}>⤢</button>
          {anyClusters && (
            <>
              <button title="Open all groups" aria-label="Open all" disabled={!collapsed.size} onClick={() => collapse(new Set())}>⊞</button>
              <button title="Close all groups" aria-label="Close all" onClick={() => collapse(allClusters(data.graph))}>⊟</button>
            </>
          )}
          {data.graph.nodes.some((node) => node.role === "constant") && (
            <button title="Show constants" aria-label="Constants" aria-pressed={constants} onClick={() => setConstants(!constants)}>c</button>
          )}
          {data.stage && data.stage.index > 0 && (
            <button title="Nodes that this pass added (+) and changed (~)" aria-label="Changes" aria-pressed={differs} onClick={() => setDiffers(!differs)}>±</button>
          )}
        </div>
        {tip && <Tooltip tip={tip} width={canvas.current?.clientWidth ?? 0} height={canvas.current?.clientHeight ?? 0} />}
        {progress !== null && (
          <p class="graph-progress" role="status">
            Laying out {view.items.length} boxes … {Math.round(progress * 100)} %
          </p>
        )}
        {failed && <p class="graph-progress" role="alert">{failed}</p>}
        <p class="graph-spoken" aria-live="polite">{spoken}</p>
      </div>
      <div class="graph-side">
        <canvas ref={mini} class="graph-mini" aria-hidden="true" />
      </div>
    </div>
  );
}

function Tooltip({ tip, width, height }: { readonly tip: Tip; readonly width: number; readonly height: number }) {
  // On the side with more room.
  const side = tip.x > width / 2 ? { right: `${width - tip.x + 14}px` } : { left: `${tip.x + 14}px` };
  const end = tip.y > height / 2 ? { bottom: `${height - tip.y + 10}px` } : { top: `${tip.y + 14}px` };
  return (
    <div class="graph-tip" role="tooltip" style={{ ...side, ...end }}>
      <b>{tip.said.title}</b>
      {tip.said.lines.map((line) => <div key={line}>{line}</div>)}
      {tip.said.remarks.map((line) => <div key={line} class="remark">{line}</div>)}
    </div>
  );
}

/** The screen position of a thing, to keep it there when its surroundings change. */
interface Anchor {
  readonly key: string;
  readonly x: number;
  readonly y: number;
}

interface Standing {
  view: GraphCanvas | null;
  scene: Scene | null;
  anchor: Anchor | null;
}

function find(scene: Scene, key: string): { x: number; y: number } | null {
  const { items, clusters } = scene.view;
  const item = items.findIndex((one) => one.key === key);
  if (item >= 0) return { x: scene.item(item).x + scene.item(item).width / 2, y: scene.item(item).y };
  const cluster = clusters.findIndex((one) => one.key === key);
  if (cluster < 0) return null;
  const box = scene.cluster(cluster);
  return { x: box.x + box.width / 2, y: box.y };
}

function anchorOf(view: GraphCanvas, scene: Scene, key: string): Anchor | null {
  const { camera } = view;
  const at = find(scene, key);
  return at && { key, x: (at.x - camera.x) * camera.scale, y: (at.y - camera.y) * camera.scale };
}

/** Switches to a new layout: at the previous position, or at the start. */
function place(at: Standing, scene: Scene, placed: Placed): void {
  const had = at.scene !== null && at.scene !== scene;
  at.scene = scene;
  if (!at.view) return;
  const { camera } = at.view;
  const to = at.anchor && find(scene, at.anchor.key);
  if (to && at.anchor) {
    camera.stop();
    camera.x = to.x - at.anchor.x / camera.scale;
    camera.y = to.y - at.anchor.y / camera.scale;
  } else if (!had || !at.anchor) {
    const first = scene.item(scene.order[0] ?? 0);
    camera.begin({ x: 0, y: 0, width: placed.width, height: placed.height }, first.x + first.width / 2, 0.7);
  }
  at.anchor = null;
}

function sameHit(a: Hit | null, b: Hit | null): boolean {
  return a === b || (a !== null && b !== null && a.kind === b.kind && a.at === b.at);
}
