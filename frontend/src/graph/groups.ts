// Groups of layers by name: `/encoder/layer.3/attention/MatMul` says where it belongs. Exporters that
// give layers flat names (node_MatMul_62) still name parameters by module, so that a layer without a
// path takes that of its parameters, and one without parameters that which its neighbors share.

import type { Layer, Nodes } from "../wire";

/** Returns for each layer the path of its group, outermost first; numbers stay with what they count. */
export function layerPaths(layers: readonly Layer[], first: Nodes | null): string[][] {
  const own = layers.map((layer) => joinNumbers(layer.group));
  if (own.some((path) => path.length) || !first) return shorten(own);
  return shorten(fill(byParameters(layers.length, first)));
}

/** The path that most of some layers have. */
export function mainPath(layers: readonly number[], paths: readonly (readonly string[])[]): string[] {
  const found: string[] = [];
  let rest = layers.map((layer) => paths[layer] ?? []);
  for (let depth = 0; ; depth++) {
    const counts = new Map<string, number>();
    for (const path of rest) {
      const part = path[depth];
      if (part !== undefined) counts.set(part, (counts.get(part) ?? 0) + 1);
    }
    const [best] = [...counts].sort((a, b) => b[1] - a[1]);
    if (!best || best[1] * 2 <= layers.length) return found;
    found.push(best[0]);
    rest = rest.filter((path) => path[depth] === best[0]);
  }
}

/** A layer's path from its parameters; `"next"` for parameters without one; null without parameters. */
type Said = readonly string[] | "next" | null;

function byParameters(count: number, first: Nodes): Said[] {
  const place = new Map(first.number.map((number, at) => [number, at]));
  const names: string[][] = Array.from({ length: count }, () => []);
  const unnamed = new Set<number>();
  first.number.forEach((_, at) => {
    const layer = first.layers[at]?.[0];
    if (layer === undefined || first.kind[at] !== "Call") return;
    for (const input of first.inputs[at] ?? []) {
      const of = place.get(input);
      if (of === undefined || first.kind[of] !== "Constant") continue;
      const name = (first.title[of] ?? "").replace(/^constant ?/, "");
      if (name) names[layer]?.push(name);
      if (!/\[\]$/.test(first.type[of] ?? "")) unnamed.add(layer);
    }
  });
  const all = names.flat();
  const parts = separator(all);
  return names.map((mine, layer) => {
    const paths = mine.map((name) => joinNumbers(name.split(parts)).slice(0, -1)).filter((path) => path.length);
    return paths.length ? paths.reduce(shared) : unnamed.has(layer) ? "next" : null;
  });
}

/** Names with dots or slashes are paths; others may be words with underscores. */
function separator(names: readonly string[]): RegExp {
  const prefix = names.length ? names.map((name) => name.split(/[./]/).slice(0, -1)).reduce(shared).length : 0;
  const deep = names.filter((name) => name.split(/[./]/).length > prefix + 1).length;
  return deep * 2 > names.length ? /[./]/ : /[./_]/;
}

/** A weight without a name goes with the bias that follows; other layers end the block before them. */
function fill(said: readonly Said[]): string[][] {
  const next: (readonly string[] | null)[] = [];
  let ahead: readonly string[] | null = null;
  for (let at = said.length - 1; at >= 0; at--) {
    const path = said[at];
    ahead = path && path !== "next" ? path : ahead;
    next[at] = ahead;
  }
  let behind: readonly string[] | null = null;
  return said.map((path, at) => {
    const after = next[at];
    if (path === "next") return [...(after ?? behind ?? [])];
    if (path) return [...(behind = path)];
    return behind && after ? behind.slice(0, shared(behind, after).length + 1) : [...(behind ?? [])].slice(0, -1);
  });
}

/** Removes the common prefix of all paths. */
function shorten(paths: string[][]): string[][] {
  const some = paths.filter((path) => path.length);
  const prefix = some.length ? some.reduce(shared).length : 0;
  return prefix ? paths.map((path) => path.slice(prefix)) : paths;
}

export function joinNumbers(path: readonly string[]): string[] {
  const joined: string[] = [];
  for (const part of path) {
    if (/^\d+$/.test(part) && joined.length) joined.push(`${joined.pop()}.${part}`);
    else if (part) joined.push(part);
  }
  return joined;
}

function shared(a: readonly string[], b: readonly string[]): string[] {
  let length = 0;
  while (length < a.length && length < b.length && a[length] === b[length]) length++;
  return a.slice(0, length);
}
