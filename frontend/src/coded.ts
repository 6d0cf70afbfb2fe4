// Errors with codes, like clew's; those of the page start at W001.

import type { ErrorInfo } from "./wire";

/** A coded error, as the server or the page found it. */
export class Coded extends Error {
  constructor(readonly info: ErrorInfo) {
    super(info.message);
  }
}

export function coded(code: string, message: string, hint = ""): Coded {
  return new Coded({ code, message, hint, layer: "", stage: "", pass_name: "" });
}
