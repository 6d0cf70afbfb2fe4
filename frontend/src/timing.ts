// The time from a mouse move to the painted highlight, as measures of the
// browser's performance timeline (`clew:hover`), which its tools and the tests read.

const NAME = "clew:hover";
const MOST_KEPT = 500;

let started = 0;
let waiting = false;
const channel = new MessageChannel();

channel.port1.onmessage = () => {
  waiting = false;
  const end = performance.now();
  if (performance.getEntriesByName(NAME).length >= MOST_KEPT) performance.clearMeasures(NAME);
  performance.measure(NAME, { start: started, end });
};

/** Records that the current mouse event (event.timeStamp) changes the highlight. */
export function hoverStarts(timeStamp: number): void {
  if (waiting) return;
  waiting = true;
  started = timeStamp;
  // A message sent in a frame arrives after that frame is painted.
  requestAnimationFrame(() => channel.port2.postMessage(null));
}
