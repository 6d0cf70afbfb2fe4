// Rows of the table of kernels: columns, sorting, text.

import { short } from "../strip/frames";
import { names } from "../parts/names";
import type { Heat, KernelInfo, Overview } from "../wire";

export interface Row {
  readonly kernel: KernelInfo;
  readonly ns: number | null;
  readonly share: number | null;
  /** How often it ran, in loops once per iteration; null if that was not measured. */
  readonly runs: number | null;
  readonly instructions: number | null;
}

export interface Column {
  readonly key: string;
  readonly title: string;
  readonly about: string;
  readonly width: number;
  readonly right: boolean;
  /** The sort key; greater first if `right`. */
  value(row: Row): number | string;
  text(row: Row): string;
}

export function columnsOf(overview: Overview, measured: boolean, counted: boolean, looped = false): Column[] {
  const first = new Map([...overview.kernels].reverse().map((k) => [k.distinct, k.index]));
  const layers = (row: Row) => row.kernel.layers.map((layer) => overview.layers[layer]?.name ?? "");
  const all: (Column | null)[] = [
    {
      key: "index", title: "#", about: "Place in the order of execution", width: 38, right: true,
      value: (r) => -r.kernel.index, text: (r) => String(r.kernel.index),
    },
    measured ? {
      key: "time", title: "time", about: "Measured time in a run", width: 66, right: true,
      value: (r) => r.ns ?? -1, text: (r) => (r.ns === null ? "" : time(r.ns)),
    } : null,
    measured ? {
      key: "share", title: "share", about: "Share of the time of all kernels", width: 74, right: true,
      value: (r) => r.share ?? -1, text: (r) => (r.share === null ? "" : `${(r.share * 100).toFixed(1)} %`),
    } : null,
    looped ? {
      key: "iterations", title: "iterations", about: "How often it runs per inference: in loops once per iteration", width: 76, right: true,
      value: (r) => r.runs ?? -1, text: (r) => (r.runs === null ? "" : String(Math.round(r.runs))),
    } : null,
    looped ? {
      key: "iteration", title: "per iteration", about: "Measured time of one iteration", width: 88, right: true,
      value: (r) => iteration(r) ?? -1, text: (r) => (iteration(r) === null ? "" : time(iteration(r) ?? 0)),
    } : null,
    {
      key: "name", title: "kernel", about: "The kernel's name, from its operators", width: 190, right: false,
      value: (r) => r.kernel.name, text: (r) => r.kernel.name,
    },
    {
      key: "layers", title: "layers", about: "Layers that it computes", width: 170, right: false,
      value: (r) => layers(r).join(" "), text: (r) => names(layers(r)),
    },
    {
      key: "flops", title: "FLOPs", about: "Floating-point operations, from the operators' shapes", width: 66, right: true,
      value: (r) => r.kernel.flops, text: (r) => (r.kernel.flops ? count(r.kernel.flops) : "0"),
    },
    {
      key: "bytes", title: "bytes", about: "Bytes of operands and results", width: 66, right: true,
      value: (r) => r.kernel.bytes, text: (r) => count(r.kernel.bytes),
    },
    measured ? {
      key: "rate", title: "GFLOP/s", about: "FLOPs by measured time, over all iterations", width: 64, right: true,
      value: (r) => rate(r) ?? -1, text: (r) => (rate(r) === null ? "" : (rate(r) ?? 0).toFixed(1)),
    } : null,
    {
      key: "rule", title: "rule", about: "Schedule rules that were chosen", width: 96, right: false,
      value: (r) => r.kernel.rules.join(), text: (r) => r.kernel.rules.join(", "),
    },
    {
      key: "shape", title: "result", about: "Types of its results", width: 200, right: false,
      value: (r) => r.kernel.shape, text: (r) => r.kernel.shape,
    },
    {
      key: "ops", title: "operators", about: "Operators, in order", width: 200, right: false,
      value: (r) => r.kernel.ops.length, text: (r) => r.kernel.ops.join(", "),
    },
    counted ? {
      key: "instructions", title: "instr.", about: "Instructions", width: 56, right: true,
      value: (r) => r.instructions ?? -1, text: (r) => (r.instructions === null ? "" : short(r.instructions)),
    } : null,
    {
      key: "code", title: "code", about: "Bytes of machine code", width: 60, right: true,
      value: (r) => r.kernel.code_bytes, text: (r) => (r.kernel.code_bytes ? count(r.kernel.code_bytes) : ""),
    },
    {
      key: "distinct", title: "code of", about: "The first kernel with the same code", width: 60, right: true,
      value: (r) => -r.kernel.distinct, text: (r) => String(first.get(r.kernel.distinct) ?? r.kernel.index),
    },
  ];
  return all.filter((column) => column !== null);
}

function rate(row: Row): number | null {
  return row.ns ? (row.kernel.flops * (row.runs ?? 1)) / row.ns : null;
}

function iteration(row: Row): number | null {
  return row.ns === null || !row.runs ? null : row.ns / row.runs;
}

/** Whether some kernel ran more often than once. */
export function loopedIn(heat: Heat | null): boolean {
  return heat?.runs.some((runs) => (runs ?? 0) > 1) ?? false;
}

export function rowsOf(overview: Overview, heat: Heat | null, instructions: readonly number[] | null): Row[] {
  const total = heat?.kernels.reduce<number>((sum, ns) => sum + (ns ?? 0), 0) ?? 0;
  return overview.kernels.map((kernel) => {
    const ns = heat?.kernels[kernel.index] ?? null;
    return {
      kernel,
      ns,
      runs: heat?.runs[kernel.index] ?? null,
      share: ns === null || !total ? null : ns / total,
      instructions: instructions?.[kernel.index] ?? null,
    };
  });
}

export function sorted(rows: readonly Row[], column: Column, down: boolean): Row[] {
  const by = down ? -1 : 1;
  return [...rows].sort((a, b) => {
    const [x, y] = [column.value(a), column.value(b)];
    const order = typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y));
    return order * by || a.kernel.index - b.kernel.index;
  });
}

/** Nanoseconds as `12.3 µs`. */
export function time(ns: number): string {
  if (ns < 1e3) return `${ns.toFixed(0)} ns`;
  if (ns < 1e6) return `${(ns / 1e3).toPrecision(3)} µs`;
  if (ns < 1e9) return `${(ns / 1e6).toPrecision(3)} ms`;
  return `${(ns / 1e9).toPrecision(3)} s`;
}

/** 231211008 as `231 M`. */
export function count(n: number): string {
  const units = ["", " k", " M", " G", " T"];
  let unit = 0;
  while (n >= 999.5 && unit < units.length - 1) [n, unit] = [n / 1e3, unit + 1];
  return `${unit || !Number.isInteger(n) ? Number(n.toPrecision(3)) : n}${units[unit]}`;
}

/** The table as text with tabs, for saving. */
export function asText(rows: readonly Row[], columns: readonly Column[]): string {
  const lines = rows.map((row) => columns.map((column) => column.text(row)).join("\t"));
  return [columns.map((column) => column.title).join("\t"), ...lines].join("\n");
}
