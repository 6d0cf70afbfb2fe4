// The open dialog. A dialog is a line here and a component inside a Modal.

import type { ComponentType } from "preact";
import { BuildDialog } from "../build/BuildDialog";
import { SearchDialog } from "../search/SearchDialog";
import { dialog, type Dialog } from "../state";
import { Help } from "./Help";
import { Palette } from "./Palette";

const DIALOGS: Readonly<Record<Dialog, ComponentType | null>> = {
  "": null,
  search: SearchDialog,
  palette: Palette,
  help: Help,
  build: BuildDialog,
};

export function Dialogs() {
  const Shown = DIALOGS[dialog.value];
  return Shown && <Shown />;
}
