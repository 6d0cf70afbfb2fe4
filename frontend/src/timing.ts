// How long the page takes from a move of the mouse to the painted highlight, as measures of the
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

/** Says that what the mouse does now (event.timeStamp) changes what is highlighted. */
export function hoverStarts(timeStamp: number): void {
  if (waiting) return;
  waiting = true;
  started = timeStamp;
  // A message sent in a frame arrives after that frame is painted.
  requestAnimationFrame(() => channel.port2.postMessage(null));
}
