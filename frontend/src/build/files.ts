// Checks, before an upload, whether dropped or selected files can be sent to the server.

import type { ErrorInfo } from "../wire";
import { bytesText } from "../parts/figures";

/** The required facts about a file. */
export interface Named {
  readonly name: string;
  readonly size: number;
}

/** The server's limit on the number of files of a model. */
const MOST_FILES = 64;

/** The number of bytes by which the server recognizes a file that is no model. */
export const HEAD_BYTES = 1 << 16;

/** A model's files: the model first, then its weights. With `asked`, the suffix is not a model's:
 * the first bytes are sent, and the server's answer says what the file is and what to do. */
export type Checked<F> = { readonly files: readonly F[]; readonly asked: boolean } | { readonly error: ErrorInfo };

/** Returns the files of the one model among these, which has one of the `suffixes`, or an error. */
export function checked<F extends Named>(files: readonly F[], suffixes: readonly string[], mostBytes: number): Checked<F> {
  const models = files.filter((file) => suffixes.some((suffix) => file.name.toLowerCase().endsWith(suffix)));
  const model = models[0] ?? files[0];
  if (!model) return refused("W010", "no file came", "drop a file; folders cannot be uploaded");
  const names = files.map((f) => f.name).join(", ");
  if (models.length > 1) return refused("W011", `${models.length} models at a time: ${names}`, "drop one; the next when it is compiled");
  if (!model.size) return refused("W014", `${model.name} is empty`, "");
  if (!models.length) return { files: [model], asked: true };
  if (files.length > MOST_FILES) return refused("W012", `${files.length} files`, `a model may have up to ${MOST_FILES - 1} files of weights`);
  const bytes = files.reduce((sum, file) => sum + file.size, 0);
  if (bytes > mostBytes) {
    return refused(
      "W013",
      `${model.name} has ${bytesText(bytes)}, more than the limit of ${bytesText(mostBytes)}`,
      "raise the limit with clew explore --max-upload MIB; models on the command line may have any size",
    );
  }
  return { files: [model, ...files.filter((file) => file !== model)], asked: false };
}

function refused(code: string, message: string, hint: string): { error: ErrorInfo } {
  return { error: { code, message, hint, layer: "", stage: "", pass_name: "" } };
}
