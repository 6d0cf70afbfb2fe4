import { digits } from "../parts/figures";

/** How much faster or slower, in words and with a sign, so that it does not hang on color. */
export function Faster({ before, after }: { readonly before: number; readonly after: number }) {
  const ratio = before / after;
  if (Math.abs(ratio - 1) < 0.02) return <span class="dim">as fast</span>;
  return ratio > 1 ? (
    <span class="good">▼ {digits(ratio)}× faster</span>
  ) : (
    <span class="bad">▲ {digits(1 / ratio)}× slower</span>
  );
}
