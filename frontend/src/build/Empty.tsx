// The page without a model.

import { theSource } from "../builds";
import { bytesText } from "../parts/figures";
import { dialog } from "../state";
import { choices, chosenModel } from "./builder";
import { ChooseFile } from "./ChooseFile";

export function Empty() {
  const offers = choices();
  if (!theSource().live) return <p class="empty">The report holds no build.</p>;
  return (
    <div class="no-model">
      <div class="drop-zone">
        <svg viewBox="0 0 48 48" width="56" height="56" aria-hidden="true">
          <path d="M24 6v24M14 20l10 10 10-10M8 34v8h32v-8" fill="none" stroke="currentColor" stroke-width="3" stroke-linecap="round" stroke-linejoin="round" />
        </svg>
        <h2>Drop a model here</h2>
        <p>
          an ONNX file, or clew's text form{offers ? `, up to ${bytesText(offers.max_upload_bytes)}` : ""}: it is compiled on this
          machine, and nothing leaves it
        </p>
        <ChooseFile text="Choose a file" primary />
        {offers && offers.models.length > 0 && (
          <p class="known">
            {offers.models.map((name) => (
              <button
                key={name}
                onClick={() => {
                  chosenModel.value = name;
                  dialog.value = "build";
                }}
              >
                {name}
              </button>
            ))}
          </p>
        )}
      </div>
    </div>
  );
}
