// Names of kernels and layers in terms of the model.

import { names } from "../parts/names";
import type { KernelInfo, Overview } from "../wire";

/** A kernel's description: the types of its layers, in order; its own name if it serves none. */
export function doing(overview: Overview, kernel: KernelInfo): string {
  const types = [...new Set(kernel.layers.map((place) => overview.layers[place]?.op ?? "").filter(Boolean))];
  return types.length ? types.join(" + ") : kernel.name;
}

/** The names of the first layers of a kernel or region. */
export function layersText(overview: Overview, kernel: Pick<KernelInfo, "layers">, most: number): string {
  const own = kernel.layers.slice(0, most).map((place) => overview.layers[place]?.name ?? "");
  const more = kernel.layers.length - own.length;
  return names(own) + (more > 0 ? ` and ${more} more` : "");
}

/** The end of a name, which tells more than its beginning: `…/layer.3/attention/MatMul`. */
export function shortened(name: string, most: number): string {
  return name.length > most ? `…${name.slice(name.length - most + 1)}` : name;
}

export function plural(n: number, one: string, many = `${one}s`): string {
  return `${n.toLocaleString("en")} ${n === 1 ? one : many}`;
}
