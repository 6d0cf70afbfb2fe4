// A modal dialog: the browser keeps the focus inside and restores it afterwards.

import type { ComponentChildren } from "preact";
import { useLayoutEffect, useRef } from "preact/hooks";
import { dialog } from "../state";
import { Icon } from "../parts/Icon";

interface ModalProps {
  readonly label: string;
  /** A heading with a close button; the palette and the search have none. */
  readonly head?: boolean;
  readonly wide?: boolean;
  readonly children: ComponentChildren;
}

export function closeDialog(): void {
  dialog.value = "";
}

export function Modal({ label, head = true, wide = false, children }: ModalProps) {
  const element = useRef<HTMLDialogElement>(null);
  useLayoutEffect(() => {
    const shown = element.current;
    const before = document.activeElement;
    shown?.showModal();
    return () => {
      shown?.close();
      if (before instanceof HTMLElement && before.isConnected) before.focus({ preventScroll: true });
    };
  }, []);
  return (
    <dialog
      ref={element}
      class={wide ? "modal wide" : "modal"}
      aria-label={label}
      onCancel={(event) => {
        // A cancelled file chooser inside fires the same event.
        if (event.target === element.current) closeDialog();
      }}
      onClick={(event) => {
        // The dialog element itself is the target only outside its contents: on the backdrop.
        if (event.target === element.current) closeDialog();
      }}
    >
      {/* The focus starts here where nothing inside asks for it. */}
      <div class="modal-body" {...(head ? { tabIndex: -1, autofocus: true } : {})}>
        {head && (
          <header>
            <h2>{label}</h2>
            <button class="quiet" aria-label="Close" title="Close (Esc)" onClick={closeDialog}>
              <Icon name="close" />
            </button>
          </header>
        )}
        {children}
      </div>
    </dialog>
  );
}
