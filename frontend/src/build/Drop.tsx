// Models may be dropped anywhere on the page; a drop zone appears while one is over it.

import { useEffect, useState } from "preact/hooks";
import { theSource } from "../builds";
import { bytesText } from "../parts/figures";
import { choices, takeFiles } from "./builder";

export function Drop() {
  const [over, setOver] = useState(false);
  useEffect(() => {
    // The pointer enters and leaves inner elements, so entered elements are counted.
    let depth = 0;
    const isFile = (event: DragEvent): boolean => event.dataTransfer?.types.includes("Files") ?? false;
    const enter = (event: DragEvent): void => {
      if (!isFile(event)) return;
      event.preventDefault();
      depth++;
      setOver(true);
    };
    const move = (event: DragEvent): void => {
      if (!isFile(event)) return;
      event.preventDefault();
      if (event.dataTransfer) event.dataTransfer.dropEffect = theSource().live ? "copy" : "none";
    };
    const leave = (): void => {
      depth = Math.max(0, depth - 1);
      if (!depth) setOver(false);
    };
    const drop = (event: DragEvent): void => {
      if (!isFile(event)) return;
      event.preventDefault();
      depth = 0;
      setOver(false);
      const files = [...(event.dataTransfer?.files ?? [])];
      if (theSource().live && files.length) takeFiles(files);
    };
    const away = (): void => {
      depth = 0;
      setOver(false);
    };
    addEventListener("dragenter", enter);
    addEventListener("dragover", move);
    addEventListener("dragleave", leave);
    addEventListener("drop", drop);
    addEventListener("blur", away);
    return () => {
      removeEventListener("dragenter", enter);
      removeEventListener("dragover", move);
      removeEventListener("dragleave", leave);
      removeEventListener("drop", drop);
      removeEventListener("blur", away);
    };
  }, []);
  if (!over) return null;
  const most = choices()?.max_upload_bytes;
  return (
    <div class="drop-over" role="presentation">
      <div class="drop-zone">
        {theSource().live ? (
          <>
            <b>Drop the model here</b>
            <span>ONNX or text IR{most ? `, up to ${bytesText(most)}` : ""}</span>
          </>
        ) : (
          <>
            <b>A report cannot compile</b>
            <span>start clew explore to try a model</span>
          </>
        )}
      </div>
    </div>
  );
}
