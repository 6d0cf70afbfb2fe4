// Figures as people read them: three digits, a unit.

export function digits(value: number): string {
  if (value === 0) return "0";
  const size = Math.abs(value);
  return size >= 100 ? value.toFixed(0) : size >= 10 ? value.toFixed(1) : value.toFixed(2);
}

export function timeText(ns: number): string {
  const size = Math.abs(ns);
  if (size >= 1e9) return `${digits(ns / 1e9)} s`;
  if (size >= 1e6) return `${digits(ns / 1e6)} ms`;
  if (size >= 1e3) return `${digits(ns / 1e3)} µs`;
  return `${digits(ns)} ns`;
}

/** A kernel's time per iteration, such as `40 iterations of 1.20 µs`; empty if it ran once. */
export function iterationsText(ns: number | null | undefined, runs: number | null | undefined): string {
  if (!runs || runs <= 1 || ns === null || ns === undefined) return "";
  return `${Math.round(runs).toLocaleString("en")} iterations of ${timeText(ns / runs)}`;
}

/** `b` relative to `a`, as a factor; empty if one of them is 0. */
export function ratioText(a: number | null, b: number | null): string {
  return a && b ? `${digits(b / a)}×` : "";
}

export function errorText(error: number): string {
  return error === 0 ? "0" : error.toExponential(1);
}

export function bytesText(bytes: number): string {
  const units = ["B", "KiB", "MiB", "GiB"];
  let at = 0;
  while (bytes >= 1024 && at < units.length - 1) {
    bytes /= 1024;
    at++;
  }
  return `${at ? digits(bytes) : bytes} ${units[at]}`;
}
