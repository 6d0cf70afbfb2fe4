// The graph that a pane shows, from its build's answers.

import { value, type Build } from "../builds";
import { shown } from "../parts/names";
import type { Pane } from "../state";
import type { Overview, Stage } from "../wire";
import { edgesOfImport, modelGraph } from "./fromModel";
import { stageGraph } from "./fromStage";
import type { Graph } from "./graph";
import { remarksOf } from "./remarks";

export interface Data {
  /** Identifies the graph among all graphs of the page. */
  readonly key: string;
  readonly build: string;
  readonly graph: Graph;
  readonly overview: Overview;
  readonly remarks: ReadonlyMap<number, readonly string[]>;
  /** The stage as it is shown; null for the model's layers. */
  readonly stage: Stage | null;
}

const kept = new Map<string, Data>();

/** Returns the graph that a pane draws, null while it is loading. Reads signals: call it in an effect or component. */
export function dataOf(pane: Pane, build: Build): Data | null {
  const overview = value(build.overview.value);
  const first = value(build.stage(0).value);
  if (!overview || !first) return null;
  if (pane.kind === "model") {
    const asked = build.model.value;
    if (asked.state === "loading") return null;
    const edges = asked.state === "ready" ? asked.value.edges : edgesOfImport(overview, first.nodes);
    return keep(`${build.id}/model`, () => ({
      build: build.id, overview, stage: null, remarks: new Map(), graph: modelGraph(overview, edges, first.nodes),
    }));
  }
  const stage = value(build.stage(pane.arg).value);
  const links = value(build.links.value);
  if (!stage || !links) return null;
  return keep(`${build.id}/stage/${stage.index}`, () => ({
    build: build.id, overview, stage, remarks: remarksOf(stage, links), graph: stageGraph(stage, overview, links, first.nodes),
  }));
}

function keep(key: string, make: () => Omit<Data, "key">): Data {
  let found = kept.get(key);
  if (!found) {
    const made = make();
    kept.set(key, (found = { key, ...made, graph: named(made.graph) }));
  }
  return found;
}

/** Canvas and SVG draw texts unchanged, so invisible characters in names are escaped before. */
function named(graph: Graph): Graph {
  return {
    ...graph,
    nodes: graph.nodes.map((node) => ({ ...node, title: shown(node.title), type: shown(node.type), detail: shown(node.detail) })),
    clusters: graph.clusters.map((cluster) => ({ ...cluster, title: shown(cluster.title) })),
  };
}
