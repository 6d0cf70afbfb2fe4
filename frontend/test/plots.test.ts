import assert from "node:assert/strict";
import { test } from "node:test";
import { columnsOf, loopedIn, rowsOf } from "../src/panes/table";
import { logAxis, ticksOf } from "../src/plots/axes";
import { overlap, place, type Box } from "../src/plots/labels";
import { fewest, ranked } from "../src/plots/ranking";
import { groups, plotted } from "../src/plots/roofline";
import { figureText, raised, scaleOf } from "../src/plots/scale";
import { drawn, marks, moved, spanOf, tracksOf, zoomed } from "../src/plots/timeline";
import type { Heat, KernelInfo, Layer, Overview, Roofline, Slice } from "../src/wire";

const layer = (name: string, op: string): Layer => ({ name, op, group: [], fate: "alive", fate_text: "", kernels: [] });
const kernel = (index: number, distinct: number, layers: number[]): KernelInfo =>
  ({ index, name: `k${index}`, distinct, layers, call: index, ops: [], numbers: [] }) as unknown as KernelInfo;
const heat = (layers: (number | null)[], kernels: number[], regions: number[] = []): Heat => ({
  metric: "time", unit: "ns", total: kernels.reduce((a, b) => a + b, 0), layers, kernels, regions, nodes: [], lines: [], instructions: [], runs: kernels.map(() => 1), basis: "", notes: [],
});
const overview = {
  layers: [layer("conv", "Conv"), layer("relu", "Relu"), layer("conv2", "Conv")],
  kernels: [kernel(0, 0, [0, 1]), kernel(1, 1, [2])],
  regions: [],
} as unknown as Overview;
const slice = (track: string, start_ns: number, ns: number, text = ""): Slice => ({ track, start_ns, ns, text, ref: "" });

test("scales go from cold to hot, and their ticks say where", () => {
  const time = scaleOf("time", 1, 4e6);
  assert.equal(time.level(0), 0);
  assert.equal(time.level(4e6), 1);
  assert.equal(time.level(1e6), 0.5);
  assert.deepEqual(time.ticks.map((t) => t.text), ["0", "1.00 ms", "4.00 ms"]);
  const error = scaleOf("error", 1e-7, 2e-4);
  assert.ok(error.level(1e-7) < error.level(1e-5));
  assert.equal(error.level(0), 0);
  assert.ok(error.ticks.every((t) => t.at >= 0 && t.at <= 1));
  assert.equal(scaleOf("peak", 0, 3).level(2.5), 1);
  assert.equal(scaleOf("time", 0, 0).level(5), 0);
});

test("figures have units", () => {
  assert.equal(figureText("flops", 3.2e9), "3.20 GFLOP");
  assert.equal(figureText("error", 1.3e-4), "1.3·10⁻⁴");
  assert.equal(raised(-12), "⁻¹²");
});

test("ranking sums up by layers, kernels and types", () => {
  const found = heat([5, 1, 4], [6, 4]);
  assert.deepEqual(ranked(overview, found, "layers").map((r) => r.title), ["conv", "conv2", "relu"]);
  assert.deepEqual(ranked(overview, found, "kernels").map((r) => r.title), ["Conv + Relu", "Conv"]);
  const types = ranked(overview, found, "types");
  assert.deepEqual(types.map((r) => [r.title, r.figure]), [["Conv", 9], ["Relu", 1]]);
  assert.equal(fewest(types, 0.5), 1);
});

test("labels lie neither on each other, nor on points, nor outside", () => {
  const inside: Box = { x: 0, y: 0, width: 400, height: 300 };
  const points = Array.from({ length: 40 }, (_, n) => ({ x: 50 + (n * 37) % 300, y: 40 + (n * 53) % 220, radius: 5 + (n % 7), width: 80, height: 14 }));
  const taken = points.map((p) => ({ x: p.x - p.radius, y: p.y - p.radius, width: 2 * p.radius, height: 2 * p.radius }));
  const boxes = place(points, taken, inside).filter((box) => box !== null);
  assert.ok(boxes.length > 5);
  boxes.forEach((a, n) => {
    assert.ok(a.x >= 0 && a.y >= 0 && a.x + a.width <= 400 && a.y + a.height <= 300);
    assert.ok(![...boxes.slice(n + 1), ...taken].some((b) => overlap(a, b)));
  });
});

test("kernels of one code are one point; what computes nothing has no place", () => {
  const point = (n: number, intensity: number, gflops: number) => ({ kernel: n, intensity, gflops, ns: 100, runs: 1, limit: "compute", limit_share: 0.5 });
  const same = { ...overview, kernels: [kernel(0, 0, [0]), kernel(1, 0, [2]), kernel(2, 1, [1])] } as unknown as Overview;
  const roofline: Roofline = {
    peak_gflops: 200, tile_gflops: 4000, bandwidths: { L2: 100, memory: 10 }, threads: 1,
    points: [point(0, 4, 50), point(1, 4, 100), point(2, 0, 0)],
  };
  const found = groups(same, roofline.points, [1, 1, 1]);
  assert.deepEqual(found.map((g) => g.kernels.length).sort(), [1, 2]);
  const plot = plotted(same, roofline, [1, 1, 1], 400, 300);
  assert.equal(plot.points.length, 1);
  assert.equal(plot.points[0]?.gflops, 75);
  assert.equal(plot.rest.length, 1);
  for (const { x, y } of plot.points) {
    assert.ok(x > plot.inside.x && x < plot.inside.x + plot.inside.width);
    assert.ok(y > plot.inside.y && y < plot.inside.y + plot.inside.height);
  }
  assert.ok(!plot.roofs.some((roof) => roof.name.startsWith("bf16")), "nothing comes near that peak");
});

test("logarithmic axes have ticks at round values", () => {
  const axis = logAxis(0.5, 2000, 0, 100);
  assert.ok(Math.abs(axis.at(0.5)) < 1e-9 && Math.abs(axis.at(2000) - 100) < 1e-9);
  assert.deepEqual(ticksOf(axis).map((t) => t.text), ["1", "10", "100", "1000"]);
  assert.deepEqual(ticksOf(logAxis(3, 60, 0, 1)).map((t) => t.text), ["5", "10", "20", "50"]);
});

test("a timeline of ten thousand slices is drawn with no more than the screen has pixels", () => {
  const slices = Array.from({ length: 10_000 }, (_, n) => slice("layers", n * 10, 10, `l${n}`));
  const timeline = { wall_ns: 100_000, slices };
  const track = tracksOf(timeline).get("layers") ?? [];
  const whole = drawn(track, { from: 0, to: spanOf(timeline) }, 800);
  assert.ok(whole.length <= 801);
  assert.equal(whole.reduce((sum, piece) => sum + piece.count, 0), 10_000);
  const near = drawn(track, { from: 50_000, to: 50_100 }, 800);
  assert.deepEqual(near.map((piece) => piece.slice?.text), Array.from({ length: 10 }, (_, n) => `l${5000 + n}`));
});

test("zooming keeps the time under the mouse, moving stays in the run", () => {
  const view = zoomed({ from: 0, to: 1000 }, 250, 4, 1000);
  assert.equal(view.to - view.from, 250);
  assert.ok(Math.abs((250 - view.from) / 250 - 0.25) < 1e-9);
  assert.deepEqual(moved(view, -10_000, 1000), { from: 0, to: 250 });
  assert.deepEqual(zoomed(view, 100, 0.001, 1000), { from: 0, to: 1000 });
  assert.ok(marks({ from: 0, to: 1000 }).length >= 3);
});

test("a kernel in a loop has its iterations and the time of one", () => {
  const looped = { ...heat([], [4000, 500]), runs: [40, 1] };
  assert.equal(loopedIn(looped), true);
  assert.equal(loopedIn(heat([], [4000, 500])), false);
  assert.match(ranked(overview, looped, "kernels")[0]?.detail ?? "", /^40 iterations of 100 ns · /);
  assert.doesNotMatch(ranked(overview, looped, "kernels")[1]?.detail ?? "", /iteration/);
  const columns = columnsOf(overview, true, false, true);
  const [first] = rowsOf(overview, looped, null);
  const shown = new Map(columns.map((column) => [column.key, column]));
  assert.equal(first && shown.get("iterations")?.text(first), "40");
  assert.equal(first && shown.get("iteration")?.text(first), "100 ns");
  assert.equal(columnsOf(overview, true, false).some((column) => column.key === "iterations"), false);
});
