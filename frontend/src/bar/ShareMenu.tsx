// Ways to share the current view.

import { useEffect, useRef, useState } from "preact/hooks";
import { Icon } from "../parts/Icon";
import { copyLink, copyReportCommand, copyState } from "../share";

export function ShareMenu({ live }: { readonly live: boolean }) {
  const [open, setOpen] = useState(false);
  const menu = useRef<HTMLDivElement>(null);
  useEffect(() => {
    if (!open) return;
    menu.current?.querySelector<HTMLElement>("[role=menuitem]")?.focus();
    const away = (event: Event): void => {
      if (event.target instanceof Node && !menu.current?.contains(event.target)) setOpen(false);
    };
    document.addEventListener("pointerdown", away, true);
    return () => document.removeEventListener("pointerdown", away, true);
  }, [open]);
  const item = (title: string, about: string, run: () => void) => (
    <button
      role="menuitem"
      onClick={() => {
        setOpen(false);
        run();
      }}
    >
      <b>{title}</b>
      <span>{about}</span>
    </button>
  );
  return (
    <div
      class="share-menu"
      ref={menu}
      data-own-keys={open ? "" : undefined}
      onKeyDown={(event) => {
        const items = [...(menu.current?.querySelectorAll<HTMLElement>("[role=menuitem]") ?? [])];
        const at = items.indexOf(document.activeElement as HTMLElement);
        if (event.key === "Escape" && open) {
          setOpen(false);
          menu.current?.querySelector("button")?.focus();
        } else if (event.key === "ArrowDown" && open) items[(at + 1) % items.length]?.focus();
        else if (event.key === "ArrowUp" && open) items[(at - 1 + items.length) % items.length]?.focus();
        else return;
        event.preventDefault();
      }}
    >
      <button class="icon-only" aria-label="Share" aria-haspopup="menu" aria-expanded={open} title="Share what is shown" onClick={() => setOpen(!open)}>
        <Icon name="share" />
      </button>
      {open && (
        <div class="menu-list" role="menu" aria-label="Share">
          {item("Copy link", live ? "Works on this machine while the server runs. It contains the server's token: anyone who has it can use the server." : "Opens this file with the current view.", copyLink)}
          {item("Copy state", "The part after #, without the token: append it to the address of any page of this model.", copyState)}
          {live && item("Copy report command", "clew report writes this page as one file that opens without a server.", copyReportCommand)}
        </div>
      )}
    </div>
  );
}
