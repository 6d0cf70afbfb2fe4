// Logarithmic axes.

import { raised } from "./scale";

export interface Axis {
  readonly low: number;
  readonly high: number;
  /** From a value to a place in pixels. */
  readonly at: (value: number) => number;
}

/** An axis from `low` to `high` over the pixels from `start` to `end`. */
export function logAxis(low: number, high: number, start: number, end: number): Axis {
  const [a, b] = [Math.log10(low), Math.log10(high)];
  return { low, high, at: (value) => start + ((Math.log10(value) - a) / (b - a)) * (end - start) };
}

export interface AxisTick {
  readonly value: number;
  readonly text: string;
}

/** Powers of ten within an axis, and 2 and 5 times these if there are few. */
export function ticksOf(axis: Axis): AxisTick[] {
  const found: AxisTick[] = [];
  const few = Math.log10(axis.high / axis.low) < 2;
  for (let power = Math.floor(Math.log10(axis.low)); power <= Math.log10(axis.high); power++) {
    for (const digit of few ? [1, 2, 5] : [1]) {
      const value = digit * 10 ** power;
      if (value >= axis.low && value <= axis.high) found.push({ value, text: plain(value, power) });
    }
  }
  return found;
}

function plain(value: number, power: number): string {
  if (power >= -3 && power < 5) return String(Number(value.toPrecision(1)));
  return `10${raised(power)}`;
}
