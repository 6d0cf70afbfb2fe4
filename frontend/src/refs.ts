// Refs name things of a build: see the docstring of src/clew/explorer/schema.py.

export type Ref =
  | { readonly kind: "layer"; readonly name: string }
  | { readonly kind: "node"; readonly stage: number; readonly number: number }
  | { readonly kind: "kernel"; readonly kernel: number }
  | { readonly kind: "region"; readonly region: number }
  | { readonly kind: "loop" | "llvm" | "asm"; readonly kernel: number; readonly line: number }
  | { readonly kind: "stage"; readonly stage: number }
  | { readonly kind: "source"; readonly line: number };

/** A thing of one of the builds that the page shows. */
export interface Here {
  readonly build: string;
  readonly ref: Ref;
}

export function format(ref: Ref): string {
  switch (ref.kind) {
    case "layer":
      return `layer:${ref.name}`;
    case "node":
      return `node:${ref.stage}:${ref.number}`;
    case "kernel":
      return `kernel:${ref.kernel}`;
    case "region":
      return `region:${ref.region}`;
    case "stage":
      return `stage:${ref.stage}`;
    case "source":
      return `source:${ref.line}`;
    default:
      return `${ref.kind}:${ref.kernel}:${ref.line}`;
  }
}

/** Returns the ref in a text, null if the text is not a ref. */
export function parse(text: string): Ref | null {
  const at = text.indexOf(":");
  const kind = text.slice(0, at);
  const rest = text.slice(at + 1);
  if (at < 0) return null;
  if (kind === "layer") return rest ? { kind, name: rest } : null;
  const numbers = rest.split(":").map((part) => (/^\d{1,9}$/.test(part) ? Number(part) : NaN));
  const [first, second] = numbers;
  if (first === undefined || numbers.some(Number.isNaN)) return null;
  if (numbers.length === 1) {
    if (kind === "kernel") return { kind, kernel: first };
    if (kind === "region") return { kind, region: first };
    if (kind === "stage") return { kind, stage: first };
    if (kind === "source") return { kind, line: first };
  }
  if (numbers.length === 2 && second !== undefined) {
    if (kind === "node") return { kind, stage: first, number: second };
    if (kind === "loop" || kind === "llvm" || kind === "asm") return { kind, kernel: first, line: second };
  }
  return null;
}

export function same(a: Here | null, b: Here | null): boolean {
  if (a === null || b === null) return a === b;
  return a.build === b.build && format(a.ref) === format(b.ref);
}
