/** Descriptions of passes and rules write code between backticks. */
export function Prose({ text }: { readonly text: string }) {
  const pieces = text.split("`");
  // An odd one out is no pair.
  if (pieces.length % 2 === 0) return <>{text}</>;
  return <>{pieces.map((piece, n) => (n % 2 ? <code key={n}>{piece}</code> : piece))}</>;
}
