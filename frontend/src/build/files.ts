// What was dropped or chosen: is it a model that the server takes? Checked before anything is sent.

import type { ErrorInfo } from "../wire";
import { bytesText } from "../parts/figures";

/** What a file has to be known of. */
export interface Named {
  readonly name: string;
  readonly size: number;
}

export const SUFFIXES = [".onnx", ".txt"] as const;

export type Checked<F> = { readonly file: F } | { readonly error: ErrorInfo };

/** Returns the one model among files, or why there is none to send. */
export function checked<F extends Named>(files: readonly F[], mostBytes: number): Checked<F> {
  const models = files.filter((file) => SUFFIXES.some((suffix) => file.name.toLowerCase().endsWith(suffix)));
  const [file, second] = models;
  const names = files.map((f) => f.name).join(", ");
  if (!file) return refused("W010", files.length ? `${names}: not a model` : "no file came", `models end in ${SUFFIXES.join(" or ")}`);
  if (second) return refused("W011", `${models.length} models at a time: ${names}`, "drop one; the next when it is compiled");
  if (files.length > 1) {
    const rest = files.filter((f) => f !== file).map((f) => f.name).join(", ");
    return refused(
      "W012",
      `${file.name} comes with ${rest}: the page takes models of one file`,
      `start clew explore ${file.name} in its folder, where its weights are found, or save the model with its weights inside`,
    );
  }
  if (file.size > mostBytes) {
    return refused(
      "W013",
      `${file.name} has ${bytesText(file.size)}, more than the ${bytesText(mostBytes)} that are taken`,
      "clew explore --max-upload MIB takes more; a model of the command line may have any size",
    );
  }
  if (!file.size) return refused("W014", `${file.name} is empty`, "");
  return { file };
}

function refused(code: string, message: string, hint: string): { error: ErrorInfo } {
  return { error: { code, message, hint, layer: "", stage: "", pass_name: "" } };
}
