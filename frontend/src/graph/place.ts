// Inputs and results of the layout: plain arrays, which are quick to send to a worker.

/** Items are boxes; clusters hold items and clusters. Sizes are in pixels at scale 1. */
export interface ToPlace {
  readonly width: Float32Array;
  readonly height: Float32Array;
  /** The cluster of each item, -1 for none. */
  readonly inside: Int32Array;
  /** The cluster around each cluster, which stands before it. */
  readonly parents: Int32Array;
  /** The width of each cluster's name. */
  readonly label: Float32Array;
  /** Pairs of items. */
  readonly edges: Int32Array;
}

/** `x` and `y` are left upper corners. Edge `n` has the points `start[n]` to `start[n + 1]`, pairs of
 * coordinates; between two with equal x it is straight, else an S.
 */
export interface Placed {
  readonly x: Float32Array;
  readonly y: Float32Array;
  readonly clusterX: Float32Array;
  readonly clusterY: Float32Array;
  readonly clusterWidth: Float32Array;
  readonly clusterHeight: Float32Array;
  readonly points: Float32Array;
  readonly start: Int32Array;
  readonly width: number;
  readonly height: number;
  readonly by: string;
}

export type Progress = (share: number) => void;

/** Padding inside a cluster; the top also has its name. */
export const PAD = 12;
export const HEAD = 22;
