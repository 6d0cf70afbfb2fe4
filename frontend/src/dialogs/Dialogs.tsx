// Whichever dialog is open: palette, search, help, a new build. Stand-in.

import { dialog } from "../state";

export function Dialogs() {
  return dialog.value ? (
    <dialog open onClick={() => (dialog.value = "")}>
      {dialog.value}
    </dialog>
  ) : null;
}
