import { evenOut, moveBorder } from "./sizes";

const STEP = 0.05;

/** The border between two panes: dragged, or moved with the arrow keys. */
export function Divider({ left, right }: { readonly left: number; readonly right: number }) {
  const drag = (event: PointerEvent) => {
    const bar = event.currentTarget as HTMLElement;
    const width = (bar.previousElementSibling?.clientWidth ?? 0) + (bar.nextElementSibling?.clientWidth ?? 0);
    let at = event.clientX;
    bar.setPointerCapture(event.pointerId);
    const move = (moved: PointerEvent) => {
      moveBorder(left, right, (moved.clientX - at) / Math.max(1, width));
      at = moved.clientX;
    };
    const end = () => {
      bar.removeEventListener("pointermove", move);
      bar.removeEventListener("pointerup", end);
      bar.removeEventListener("pointercancel", end);
    };
    bar.addEventListener("pointermove", move);
    bar.addEventListener("pointerup", end);
    bar.addEventListener("pointercancel", end);
    event.preventDefault();
  };
  const keys = (event: KeyboardEvent) => {
    const by = event.key === "ArrowLeft" ? -STEP : event.key === "ArrowRight" ? STEP : 0;
    if (!by) return;
    moveBorder(left, right, by);
    event.preventDefault();
    event.stopPropagation();
  };
  return (
    <div
      class="divider"
      role="separator"
      aria-orientation="vertical"
      aria-label="Width of the panes"
      title="Drag to resize; double-click to even out"
      tabIndex={0}
      onPointerDown={drag}
      onKeyDown={keys}
      onDblClick={() => evenOut(left, right)}
    />
  );
}
