// Parses a query: a filter such as `layer:`, and the text to search for.

/** Kinds of things that can be found: those of schema.Entry, and lines of text. */
export const KINDS = [
  "layer", "kernel", "region", "stage", "operator", "parameter", "attribute", "dtype", "shape", "remark",
  "model line", "graph line", "loop line", "LLVM line", "instruction",
] as const;
export type Kind = (typeof KINDS)[number];

/** The headings of groups of results. */
export const HEADS: Readonly<Record<Kind, string>> = {
  layer: "Layers",
  kernel: "Kernels",
  region: "Regions on other backends",
  stage: "Stages",
  operator: "Operators",
  parameter: "Parameters",
  attribute: "Attributes",
  dtype: "Types of elements",
  shape: "Shapes",
  remark: "Remarks of passes",
  "model line": "Lines of the model",
  "graph line": "Lines of the graph",
  "loop line": "Lines of loop nests",
  "LLVM line": "Lines of LLVM",
  instruction: "Instructions",
};

export interface Filter {
  readonly prefix: string;
  readonly about: string;
  readonly kinds: readonly Kind[];
}

export const FILTERS: readonly Filter[] = [
  { prefix: "layer:", about: "layers of the model", kinds: ["layer"] },
  { prefix: "kernel:", about: "kernels", kinds: ["kernel"] },
  { prefix: "region:", about: "regions on other backends, by name or backend", kinds: ["region"] },
  { prefix: "op:", about: "operators, and layers of that type", kinds: ["operator", "layer"] },
  { prefix: "dtype:", about: "types of elements", kinds: ["dtype"] },
  { prefix: "shape:", about: "shapes, as 1x64x56x56", kinds: ["shape"] },
  { prefix: "attr:", about: "attributes, as strides=", kinds: ["attribute"] },
  { prefix: "param:", about: "weights and constants", kinds: ["parameter"] },
  { prefix: "remark:", about: "reasons given by passes", kinds: ["remark"] },
  { prefix: "stage:", about: "stages and passes", kinds: ["stage"] },
  { prefix: "line:", about: "lines of text and code", kinds: ["model line", "graph line", "loop line", "LLVM line", "instruction"] },
];

export interface Query {
  readonly filter: Filter | null;
  /** The searched text, in lower case, in one piece. */
  readonly needle: string;
  readonly words: readonly string[];
}

export function parseQuery(text: string): Query {
  const typed = text.trimStart().toLowerCase();
  const filter = FILTERS.find((f) => typed.startsWith(f.prefix)) ?? null;
  let needle = (filter ? typed.slice(filter.prefix.length) : typed).trim().replace(/\s+/g, " ");
  if (filter?.prefix === "shape:") needle = shape(needle);
  return { filter, needle, words: needle.split(" ").filter(Boolean) };
}

/** Dimensions as graph IR writes them: `1x64x56` and `1,64,56` become `1, 64, 56`. */
function shape(text: string): string {
  return text.replace(/(?<=\d)\s*[x×]\s*(?=\d)/g, ", ").replace(/\s*,\s*(?=\S)/g, ", ");
}
