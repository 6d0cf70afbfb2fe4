import assert from "node:assert/strict";
import { test } from "node:test";
import { changesOf } from "../src/graph/changes";
import { tidy } from "../src/graph/clusters";
import { attributes, stageGraph } from "../src/graph/fromStage";
import { modelGraph } from "../src/graph/fromModel";
import type { Cluster, Graph, GraphNode } from "../src/graph/graph";
import { layerPaths } from "../src/graph/groups";
import { layered } from "../src/graph/layered";
import { roughly, toPlace } from "../src/graph/measure";
import type { Placed, ToPlace } from "../src/graph/place";
import { betweenRemarks, remarksOf } from "../src/graph/remarks";
import { layerRgb, rgb } from "../src/graph/rgb";
import { Scene } from "../src/graph/scene";
import { layersOf, type Shown } from "../src/graph/shown";
import { svgOf } from "../src/graph/svg";
import { allClusters, collapsedAtFirst, makeView, type View } from "../src/graph/visible";
import type { KernelInfo, Layer, Links, Nodes, Overview, Stage } from "../src/wire";

const HOSTILE = `<img src=x onerror="alert('1')">&]]>`;

function layer(name: string, group: string[] = []): Layer {
  return { name, op: "Op", group, fate: "alive", fate_text: "", kernels: [] };
}

interface Row {
  readonly number: number;
  readonly kind: string;
  readonly title: string;
  readonly inputs?: number[];
  readonly functions?: number[];
  readonly parent?: number;
  readonly layers?: number[];
  readonly text?: string;
}

function stageOf(rows: readonly Row[], index = 0, remarks: Stage["remarks"] = []): Stage {
  const nodes: Nodes = {
    number: rows.map((row) => row.number),
    line: rows.map((_, at) => at + 1),
    kind: rows.map((row) => row.kind),
    title: rows.map((row) => row.title),
    type: rows.map(() => "f32[4]"),
    layers: rows.map((row) => row.layers ?? []),
    marks: rows.map(() => []),
    inputs: rows.map((row) => row.inputs ?? []),
    functions: rows.map((row) => row.functions ?? []),
    parent: rows.map((row) => row.parent ?? -1),
    kernel: rows.map(() => -1),
    born: rows.map(() => index),
  };
  const text = rows.map((row) => row.text ?? `%0: f32[4] = ${row.title}(%x)  // l`).join("\n");
  return { index, name: "pass", text, nodes, remarks };
}

function overviewOf(layers: Layer[], kernels: Partial<KernelInfo>[] = []): Overview {
  const stages = [0, 1].map((index) => ({ index, name: index ? "FuseOps" : "import" }));
  return { layers, kernels, regions: [], stages, loops: [], outputs: ["y"], inputs: ["x"] } as unknown as Overview;
}

/** One fused function of two operators, called once: x → [add → relu] → tanh → y. */
const FUSED: Row[] = [
  { number: 0, kind: "Var", title: "x" },
  { number: 10, kind: "Function", title: "function add_relu" },
  { number: 11, kind: "Var", title: "p0", parent: 10 },
  { number: 12, kind: "Call", title: "add", inputs: [11, 11], parent: 10, layers: [0] },
  { number: 13, kind: "Call", title: "nn.relu", inputs: [12], parent: 10, layers: [1] },
  { number: 14, kind: "Call", title: "add_relu", inputs: [0], functions: [10], layers: [0, 1] },
  { number: 15, kind: "Call", title: "tanh", inputs: [14], layers: [2] },
  { number: 16, kind: "Tuple", title: "tuple", inputs: [15] },
];
const KERNEL = { index: 0, name: "add_relu", call: 14, numbers: [12, 13], layers: [0, 1], ops: ["add", "nn.relu"], shape: "" };

function named(graph: Graph): string[] {
  const names = graph.nodes.map((node) => node.title);
  const found: string[] = [];
  for (let at = 0; at < graph.edges.length; at += 2) {
    found.push(`${names[graph.edges[at] as number]} > ${names[graph.edges[at + 1] as number]}`);
  }
  return found.sort();
}

test("calls of fused functions are looked through, and the function is a hull", () => {
  const overview = overviewOf([layer("a"), layer("b"), layer("c")], [KERNEL]);
  const graph = stageGraph(stageOf(FUSED), overview, null, null);
  assert.deepEqual(named(graph), ["add > nn.relu", "nn.relu > tanh", "tanh > y", "x > add"]);
  const [hull] = graph.clusters;
  assert.equal(graph.clusters.length, 1);
  assert.deepEqual([hull?.kind, hull?.title, hull?.ref], ["kernel", "add_relu", { kind: "kernel", kernel: 0 }]);
  assert.deepEqual(graph.nodes.map((node) => node.kernel), [-1, 0, 0, -1, -1]);
});

test("a region is a hull with its backend, and is told as one", () => {
  const region = { index: 0, name: "add_relu", backend: "numpy", call: 14, numbers: [12, 13], layers: [0, 1], ops: ["add", "nn.relu"] };
  const overview = { ...overviewOf([layer("a"), layer("b"), layer("c")]), regions: [region] } as unknown as Overview;
  const graph = stageGraph(stageOf(FUSED), overview, null, null);
  const hull = graph.clusters.find((cluster) => cluster.kind === "kernel");
  assert.equal(hull?.title, "add_relu on numpy");
  assert.deepEqual(hull?.ref, { kind: "region", region: 0 });
});

test("branches show both bodies, and what they hand on", () => {
  const rows: Row[] = [
    { number: 0, kind: "Var", title: "x" },
    { number: 1, kind: "Call", title: "greater", inputs: [0], layers: [0] },
    { number: 2, kind: "Function", title: "function" },
    { number: 3, kind: "Var", title: "a", parent: 2 },
    { number: 4, kind: "Call", title: "tanh", inputs: [3], parent: 2, layers: [1] },
    { number: 5, kind: "Tuple", title: "tuple", inputs: [4], parent: 2 },
    { number: 6, kind: "Function", title: "function" },
    { number: 7, kind: "Var", title: "a", parent: 6 },
    { number: 8, kind: "Call", title: "abs", inputs: [7], parent: 6, layers: [1] },
    { number: 9, kind: "Tuple", title: "tuple", inputs: [8], parent: 6 },
    { number: 10, kind: "If", title: "if", inputs: [1, 0], functions: [2, 6], layers: [1] },
    { number: 11, kind: "TupleGetItem", title: "tuplegetitem", inputs: [10], text: "%8: f32[4] = %7[0]  // l" },
    { number: 12, kind: "Tuple", title: "tuple", inputs: [11] },
  ];
  const graph = stageGraph(stageOf(rows), overviewOf([layer("a"), layer("choice")]), null, null);
  assert.deepEqual(named(graph), ["abs > if", "greater > if", "if > y", "tanh > if", "x > abs", "x > greater", "x > tanh"]);
  assert.deepEqual(graph.clusters.map((cluster) => cluster.title), ["if choice", "then", "else"]);
});

test("an item of a tuple leads to what computes it", () => {
  const rows: Row[] = [
    { number: 0, kind: "Var", title: "x" },
    { number: 1, kind: "Call", title: "a", inputs: [0] },
    { number: 2, kind: "Call", title: "b", inputs: [0] },
    { number: 3, kind: "Tuple", title: "tuple", inputs: [1, 2] },
    { number: 4, kind: "TupleGetItem", title: "tuplegetitem", inputs: [3], text: "%3: f32[4] = %2[1]" },
    { number: 5, kind: "Call", title: "c", inputs: [4] },
  ];
  const graph = stageGraph(stageOf(rows), overviewOf([]), null, null);
  assert.deepEqual(named(graph), ["b > c", "c > y", "x > a", "x > b"]);
});

test("attributes are what is neither operand nor comment", () => {
  assert.equal(attributes('%1: f32[4] = op(%0, %x, axis=[1, 2], to="a, (b)")  // n0'), 'axis=[1, 2], to="a, (b)"');
  assert.equal(attributes("%1: f32[4] = op(%0)"), "");
  assert.equal(attributes("nothing"), "");
});

test("groups come from names of layers, else of parameters", () => {
  const own = [layer("/net/block.0/a", ["net", "block.0"]), layer("/net/block.1/a", ["net", "block.1"])];
  assert.deepEqual(layerPaths(own, null), [["block.0"], ["block.1"]]);
  const rows: Row[] = [
    { number: 0, kind: "Constant", title: "constant net.layer.0.fc.weight" },
    { number: 1, kind: "Call", title: "dense", inputs: [0], layers: [0] },
    { number: 2, kind: "Call", title: "relu", inputs: [1], layers: [1] },
    { number: 3, kind: "Constant", title: "constant net.layer.1.fc.weight" },
    { number: 4, kind: "Call", title: "dense", inputs: [2, 3], layers: [2] },
  ];
  const paths = layerPaths(["fc0", "act", "fc1"].map((name) => layer(name)), stageOf(rows).nodes);
  assert.deepEqual(paths, [["layer.0", "fc"], ["layer.0"], ["layer.1", "fc"]]);
});

function plain(count: number, pairs: readonly (readonly [number, number])[], inside: (at: number) => number): { nodes: GraphNode[]; edges: number[] } {
  const nodes = Array.from({ length: count }, (_, at): GraphNode => ({
    key: `n${at}`, role: "op", ref: { kind: "node", stage: 0, number: at }, number: at, title: `op${at}`, type: "f32[4]",
    detail: "", layers: [at % 7], marks: [], kernel: -1, by: "", cluster: inside(at),
  }));
  return { nodes, edges: pairs.flat() };
}

function cluster(key: string, parent = -1): Cluster {
  return { key, kind: "group", title: key, ref: null, kernel: -1, layer: -1, number: -1, parent };
}

test("a cluster that a path leaves and enters again is parted", () => {
  // 0, 1 and 3, 4 in a cluster, 2 between them.
  const { nodes, edges } = plain(5, [[0, 1], [1, 2], [2, 3], [3, 4]], (at) => (at === 2 ? -1 : 0));
  const clusters = tidy(nodes, edges, [cluster("g")]);
  assert.equal(clusters.length, 2);
  assert.deepEqual(nodes.map((node) => node.cluster), [0, 0, -1, 1, 1]);
});

test("clusters that wait for each other do not stay as they are", () => {
  const { nodes, edges } = plain(4, [[0, 1], [2, 3]], (at) => (at === 0 || at === 3 ? 0 : 1));
  const clusters = tidy(nodes, edges, [cluster("a"), cluster("b")]);
  const view = makeView({ nodes, edges, clusters }, new Set(clusters.map((c) => c.key)), true);
  assert.ok(!hasCycle(view.items.length, view.edges));
});

function hasCycle(count: number, edges: readonly number[]): boolean {
  const alive = new Set(Array.from({ length: count }, (_, at) => at));
  for (let changed = true; changed; ) {
    changed = false;
    for (const at of alive) {
      const waits = edges.some((to, n) => n % 2 === 1 && to === at && alive.has(edges[n - 1] as number));
      if (!waits) changed = alive.delete(at);
    }
  }
  return alive.size > 0;
}

/** Blocks of three branches with a residual, a cluster a block and a branch. */
function blocks(count: number): Graph {
  const pairs: [number, number][] = [];
  const inside: number[] = [-1];
  const clusters: Cluster[] = [];
  let last = 0;
  let next = 1;
  for (let block = 0; block < count; block++) {
    const outer = clusters.push(cluster(`b${block}`)) - 1;
    const ends: number[] = [];
    for (let branch = 0; branch < 3; branch++) {
      const inner = clusters.push(cluster(`b${block}.${branch}`, outer)) - 1;
      let at = last;
      for (let n = 0; n < 3; n++) {
        pairs.push([at, next]);
        inside.push(inner);
        at = next++;
      }
      ends.push(at);
    }
    inside.push(outer);
    for (const end of [...ends, last]) pairs.push([end, next]);
    last = next++;
  }
  const { nodes, edges } = plain(next, pairs, (at) => inside[at] as number);
  return { nodes, edges, clusters: tidy(nodes, edges, clusters) };
}

function laidOut(graph: Graph, collapsed: ReadonlySet<string> = new Set()): { view: View; input: ToPlace; placed: Placed } {
  const view = makeView(graph, collapsed, false);
  const input = toPlace(view, roughly);
  return { view, input, placed: layered(input) };
}

function sound({ view, input, placed }: ReturnType<typeof laidOut>): void {
  const boxes = view.items.map((item, at) => ({
    inside: item.inside, x: placed.x[at] as number, y: placed.y[at] as number,
    right: (placed.x[at] as number) + (input.width[at] as number), bottom: (placed.y[at] as number) + (input.height[at] as number),
  }));
  const hulls = view.clusters.map((_, at) => ({
    inside: view.parents[at] as number, x: placed.clusterX[at] as number, y: placed.clusterY[at] as number,
    right: (placed.clusterX[at] as number) + (placed.clusterWidth[at] as number),
    bottom: (placed.clusterY[at] as number) + (placed.clusterHeight[at] as number),
  }));
  const slack = 0.5;
  for (const box of [...boxes, ...hulls]) {
    assert.ok(Number.isFinite(box.x) && Number.isFinite(box.y));
    const hull = hulls[box.inside];
    if (!hull) continue;
    assert.ok(box.x >= hull.x && box.right <= hull.right + slack && box.y >= hull.y && box.bottom <= hull.bottom + slack);
  }
  const near = new Map<number, typeof boxes>();
  for (const box of [...boxes, ...hulls]) {
    for (const other of near.get(box.inside) ?? []) {
      const apart = box.right <= other.x + slack || other.right <= box.x + slack || box.bottom <= other.y + slack || other.bottom <= box.y + slack;
      assert.ok(apart, "boxes overlap");
    }
    near.set(box.inside, [...(near.get(box.inside) ?? []), box]);
  }
  for (let edge = 0; edge < view.edges.length / 2; edge++) {
    const from = placed.start[edge] as number;
    const to = placed.start[edge + 1] as number;
    const source = boxes[view.edges[2 * edge] as number];
    const target = boxes[view.edges[2 * edge + 1] as number];
    assert.ok(to - from >= 4);
    assert.ok(Math.abs((placed.points[from + 1] as number) - (source?.bottom ?? NaN)) < slack);
    assert.ok(Math.abs((placed.points[to - 1] as number) - (target?.y ?? NaN)) < slack);
  }
}

test("nothing overlaps, clusters hold what is theirs, lines begin and end at boxes", () => {
  const graph = blocks(6);
  sound(laidOut(graph));
  sound(laidOut(graph, new Set(["b2", "b4.1"])));
  sound(laidOut(graph, allClusters(graph)));
});

test("a graph with cycles, alone boxes and doubled ways is laid out", () => {
  const { nodes, edges } = plain(8, [[0, 1], [1, 2], [2, 0], [2, 3], [0, 3], [5, 6], [6, 5]], () => -1);
  const found = laidOut({ nodes, edges, clusters: [] });
  for (const value of [...found.placed.x, ...found.placed.y, ...found.placed.points]) assert.ok(Number.isFinite(value));
});

test("a chain is a straight line, also where values skip over it", () => {
  const count = 12;
  const pairs = Array.from({ length: count - 1 }, (_, at) => [at, at + 1] as const);
  const { nodes, edges } = plain(count, [...pairs, [0, 5], [3, 9]], () => -1);
  const { input, placed } = laidOut({ nodes, edges, clusters: [] });
  const middles = Array.from(placed.x, (x, at) => x + (input.width[at] as number) / 2);
  for (const middle of middles) assert.ok(Math.abs(middle - (middles[0] as number)) < 1);
});

test("a long graph does not drift aside, and its size grows with its length only", () => {
  const short = laidOut(blocks(4)).placed;
  const long = laidOut(blocks(40)).placed;
  assert.ok(long.width < short.width * 1.2);
});

test("10,000 boxes are laid out", () => {
  const graph = blocks(1000);
  assert.equal(graph.nodes.length, 10_001);
  const { placed } = laidOut(graph);
  assert.ok(placed.width < 3000 && Number.isFinite(placed.height));
});

test("levels are opened from the outside as long as they can be read", () => {
  assert.equal(collapsedAtFirst(blocks(2)).size, 0);
  const many = blocks(60);
  const view = makeView(many, collapsedAtFirst(many), false);
  assert.ok(view.items.length <= 120 && view.items.length >= 60);
  assert.equal(view.items.find((item) => item.cluster)?.operators, 10);
});

test("the model's layers hand on values, from its inputs to its outputs", () => {
  const overview = overviewOf([layer("a"), layer("b")]);
  const graph = modelGraph(overview, [
    { source: -1, target: 0, value: "x" }, { source: 0, target: 1, value: "v" }, { source: 1, target: -1, value: "y" },
  ], null);
  assert.deepEqual(graph.nodes.map((node) => [node.role, node.detail]), [["op", "a"], ["op", "b"], ["input", ""], ["output", ""]]);
  assert.deepEqual(graph.edges, [2, 0, 0, 1, 1, 3]);
});

const LINKS: Links = {
  born: [], last: [], away: [], layers: [],
  stages: [{ old: [], new: [], same: [] }, { old: [5, 6], new: [13, 15], same: [1, 1] }],
};

test("remarks about what a pass was given are shown at what it made of it", () => {
  const stage = stageOf(FUSED, 1, [{ number: 5, pass_name: "FuseOps", text: "tanh not fused into nn.relu: because" }]);
  const remarks = remarksOf(stage, LINKS);
  assert.deepEqual(remarks.get(13), ["FuseOps: tanh not fused into nn.relu: because"]);
  const graph = stageGraph(stage, overviewOf([layer("a"), layer("b"), layer("c")], [KERNEL]), null, null);
  const at = (title: string) => graph.nodes.findIndex((node) => node.title === title);
  assert.equal(betweenRemarks(graph, remarks, at("nn.relu"), at("tanh")).length, 1);
  assert.equal(betweenRemarks(graph, remarks, at("add"), at("nn.relu")).length, 0);
});

test("a stage's changes are what it added and what differs, not all that was made anew", () => {
  const before = stageOf([{ number: 0, kind: "Var", title: "x" }, { number: 1, kind: "Call", title: "a" }, { number: 2, kind: "Call", title: "b" }]);
  const after = stageOf(
    [{ number: 0, kind: "Var", title: "x" }, { number: 3, kind: "Call", title: "a" }, { number: 4, kind: "Call", title: "c" }, { number: 5, kind: "Call", title: "d" }],
    1,
  );
  const links: Links = {
    born: [0, 0, 0, 1, 1, 1], last: [1, 0, 0, 1, 1, 1], away: [], layers: [],
    stages: [{ old: [], new: [], same: [] }, { old: [1, 2], new: [3, 4], same: [1, 1] }],
  };
  const graph = stageGraph(after, overviewOf([]), links, null);
  const changes = changesOf(graph.nodes, after, before, links);
  assert.deepEqual(graph.nodes.map((node, at) => node.title + changes[at]), ["x", "a", "c~", "d+", "y"]);
});

test("SVG holds everything, and names stay text", () => {
  const rows: Row[] = [
    { number: 0, kind: "Var", title: HOSTILE },
    { number: 1, kind: "Call", title: HOSTILE, inputs: [0], layers: [0] },
  ];
  const graph = stageGraph(stageOf(rows), overviewOf([layer(HOSTILE)]), null, null);
  const { view, input, placed } = laidOut(graph);
  const scene = new Scene(view, placed, input.width, input.height);
  const look = { dark: true, back: "#000000", panel: "#111111", raised: "#222222", line: "#333333", text: "#eeeeee", dim: "#999999", accent: "#6cb4ff", hot: "#ffb454", good: "#5fd39a", selected: "#4a3d1c" };
  const shown: Shown = { scene, look, layers: layersOf(scene), heat: null, hits: null, clusterHits: null, changes: null, key: -1, pointed: null };
  const svg = svgOf(shown);
  assert.ok(!svg.includes("<img") && svg.includes("&lt;img"));
  assert.equal(svg.split("<path").length - 1, 2 * (view.edges.length / 2));
  assert.ok(svg.startsWith("<svg") && svg.endsWith("</svg>"));
});

test("what is under the pointer", () => {
  const { view, input, placed } = laidOut(blocks(2));
  const scene = new Scene(view, placed, input.width, input.height);
  const box = scene.item(1);
  assert.deepEqual(scene.hit(box.x + 3, box.y + 3, 4), { kind: "item", at: 1 });
  const hull = scene.cluster(0);
  assert.deepEqual(scene.hit(hull.x + hull.width - 8, hull.y + 6, 1), { kind: "cluster", at: 0, part: "head" });
  assert.equal(scene.hit(-50, -50, 4), null);
  const first = placed.start[0] as number;
  const found = scene.hit(placed.points[first] as number, (placed.points[first + 1] as number) + 6, 4);
  assert.equal(found?.kind, "edge");
});

test("OKLCH as RGB", () => {
  assert.equal(rgb("oklch(100% 0 0)"), "#ffffff");
  assert.equal(rgb("oklch(0% 0 0 / 0.5)"), "#000000");
  assert.equal(rgb("#123456"), "#123456");
  assert.match(layerRgb(true, 3), /^#[0-9a-f]{6}$/);
});

test("layers of a loop's body stand in a box with its name and iterations, loops in loops in theirs", () => {
  const names = ["before", "outer", "inner", "deep", "beside"];
  const overview = {
    ...overviewOf(names.map((name) => layer(name))),
    loops: [
      { layer: 1, parent: -1, iterations: null, layers: [2, 3, 4], kernels: [] },
      { layer: 2, parent: 0, iterations: 40, layers: [3], kernels: [] },
    ],
  };
  const pairs = [[-1, 0], [0, 3], [3, 2], [2, 4], [4, 1], [1, -1]] as const;
  const graph = modelGraph(overview, pairs.map(([source, target], n) => ({ source, target, value: `v${n}` })), null);
  const path = (name: string): string[] => {
    const found: string[] = [];
    let at = graph.nodes.find((node) => node.detail === name)?.cluster ?? -1;
    for (; at >= 0; at = graph.clusters[at]?.parent ?? -1) found.unshift(graph.clusters[at]?.title ?? "");
    return found;
  };
  assert.deepEqual(path("before"), []);
  assert.deepEqual(path("outer"), ["outer: loop"]);
  assert.deepEqual(path("beside"), ["outer: loop"]);
  assert.deepEqual(path("inner"), ["outer: loop", "inner: 40 iterations"]);
  assert.deepEqual(path("deep"), ["outer: loop", "inner: 40 iterations"]);
});

test("a layer that became a loop has a box of its own", () => {
  const overview = { ...overviewOf([layer("lstm")]), loops: [{ layer: 0, parent: -1, iterations: 7, layers: [], kernels: [] }] };
  const graph = modelGraph(overview, [{ source: -1, target: 0, value: "x" }], null);
  assert.deepEqual(graph.clusters.map((cluster) => cluster.title), ["lstm: 7 iterations"]);
});
