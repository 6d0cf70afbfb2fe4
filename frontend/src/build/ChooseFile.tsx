import { useRef } from "preact/hooks";
import { takeFiles } from "./builder";

/** A button that opens a file chooser for a model, as an alternative to dropping a file. */
export function ChooseFile({ text, primary }: { readonly text: string; readonly primary?: boolean }) {
  const input = useRef<HTMLInputElement>(null);
  return (
    <>
      <button type="button" class={primary ? "primary" : ""} data-action="choose-file" onClick={() => input.current?.click()}>
        {text}
      </button>
      <input
        ref={input}
        type="file"
        hidden
        multiple
        aria-label="model file"
        onChange={(event) => {
          const files = [...(event.currentTarget.files ?? [])];
          event.currentTarget.value = "";
          if (files.length) takeFiles(files);
        }}
      />
    </>
  );
}
