// An edited schedule: its steps as text, with earlier versions, to undo.

export interface Edit {
  readonly steps: readonly string[];
  readonly past: readonly (readonly string[])[];
  readonly future: readonly (readonly string[])[];
}

const MOST_KEPT = 200;

export function begin(steps: readonly string[]): Edit {
  return { steps, past: [], future: [] };
}

function to(edit: Edit, steps: readonly string[]): Edit {
  const same = steps.length === edit.steps.length && steps.every((step, n) => step === edit.steps[n]);
  if (same) return edit;
  return { steps, past: [...edit.past.slice(-MOST_KEPT + 1), edit.steps], future: [] };
}

/** Changes a step; text of several lines becomes several steps, and no text removes it. */
export function replace(edit: Edit, at: number, text: string): Edit {
  return to(edit, edit.steps.toSpliced(at, 1, ...lines(text)));
}

/** Inserts steps before the one at a place. */
export function insert(edit: Edit, at: number, text: string): Edit {
  return to(edit, edit.steps.toSpliced(at, 0, ...lines(text)));
}

export function remove(edit: Edit, at: number): Edit {
  return to(edit, edit.steps.toSpliced(at, 1));
}

/** Moves a step up (`by` -1) or down (1). */
export function move(edit: Edit, at: number, by: number): Edit {
  const step = edit.steps[at];
  const target = at + by;
  if (step === undefined || target < 0 || target >= edit.steps.length) return edit;
  return to(edit, edit.steps.toSpliced(at, 1).toSpliced(target, 0, step));
}

/** Replaces all steps by a text with one step per line. */
export function write(edit: Edit, text: string): Edit {
  return to(edit, lines(text));
}

export function undo(edit: Edit): Edit {
  const steps = edit.past.at(-1);
  return steps ? { steps, past: edit.past.slice(0, -1), future: [edit.steps, ...edit.future] } : edit;
}

export function redo(edit: Edit): Edit {
  const [steps, ...future] = edit.future;
  return steps ? { steps, past: [...edit.past, edit.steps], future } : edit;
}

function lines(text: string): string[] {
  return text.split("\n").map((line) => line.trim()).filter(Boolean);
}

/** A step in parts, such as `split`, and `relu.i3`, `11`, `balance` with their names. */
export interface Call {
  readonly name: string;
  readonly values: readonly { readonly name: string; readonly value: string }[];
}

/** Parses a step for display; text that is not a step becomes a name only. */
export function readCall(text: string): Call {
  const found = /^\s*(\w+)\((.*)\)\s*$/s.exec(text);
  if (!found) return { name: text, values: [] };
  const values: { name: string; value: string }[] = [];
  for (const part of (found[2] ?? "").matchAll(/(?:(\w+)\s*=\s*)?(\((?:[^()]*)\)|'[^']*'|"[^"]*"|[^,\s]+)/g)) {
    const raw = part[2] ?? "";
    const inner = raw.startsWith("(") ? raw.slice(1, -1).replace(/,\s*$/, "") : raw;
    values.push({ name: part[1] ?? "", value: inner.replace(/['"]/g, "") });
  }
  return { name: found[1] ?? "", values };
}
