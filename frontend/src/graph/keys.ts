// Keys of a graph: zoom, pan, from box to box.

import type { Camera } from "./camera";
import type { Box } from "./scene";

export interface KeyActions {
  /** To the next or previous box; false at the end, where Tab goes on to what follows the graph. */
  step(by: number): boolean;
  choose(): void;
  fold(): void;
  leave(): void;
  whole(): Box | null;
}

const PAN = 60;

export function graphKeys(canvas: HTMLCanvasElement, camera: Camera, actions: KeyActions): () => void {
  // Escape lets Tab out of the graph.
  let out = false;
  const key = (event: KeyboardEvent): void => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const done = press(event);
    if (done) {
      event.preventDefault();
      event.stopPropagation();
    }
  };
  const press = (event: KeyboardEvent): boolean => {
    switch (event.key) {
      case "+":
      case "=":
        camera.zoom(1.25);
        return true;
      case "-":
      case "_":
        camera.zoom(1 / 1.25);
        return true;
      case "0": {
        const whole = actions.whole();
        if (whole) camera.whole(whole, true);
        return true;
      }
      case "ArrowLeft":
        camera.pan(PAN, 0);
        return true;
      case "ArrowRight":
        camera.pan(-PAN, 0);
        return true;
      case "ArrowUp":
        camera.pan(0, PAN);
        return true;
      case "ArrowDown":
        camera.pan(0, -PAN);
        return true;
      case "Tab":
        if (out) return false;
        if (actions.step(event.shiftKey ? -1 : 1)) return true;
        actions.leave();
        return false;
      case "Enter":
        actions.choose();
        return true;
      case " ":
        actions.fold();
        return true;
      case "Escape":
        out = true;
        actions.leave();
        return false;
      default:
        return false;
    }
  };
  const enter = () => (out = false);
  canvas.addEventListener("keydown", key);
  canvas.addEventListener("focus", enter);
  canvas.addEventListener("blur", actions.leave);
  return () => {
    canvas.removeEventListener("keydown", key);
    canvas.removeEventListener("focus", enter);
    canvas.removeEventListener("blur", actions.leave);
  };
}
