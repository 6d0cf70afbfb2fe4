// The marks of a timeline's axis: for each, a vertical line and a label at the top.

import { marks, type View } from "./timeline";

interface Props {
  readonly view: View;
  readonly width: number;
  readonly top: number;
  readonly height: number;
  readonly text: (at: number) => string;
}

/** The distance from either end, in pixels, within which a label stands beside its line. */
const BESIDE = 30;

export function Marks({ view, width, top, height, text }: Props) {
  return (
    <>
      {marks(view).map((at) => {
        const x = ((at - view.from) / (view.to - view.from)) * width;
        const anchor = x < BESIDE ? "start" : x > width - BESIDE ? "end" : "middle";
        return (
          <g key={at}>
            <line class="grid" x1={x} x2={x} y1={top} y2={height} />
            <text class="tick" x={Math.min(width - 2, Math.max(2, x))} y={11} text-anchor={anchor}>{text(at)}</text>
          </g>
        );
      })}
    </>
  );
}
