// A link to a thing of a build: hovering focuses it, a click goes there.

import type { ComponentChildren } from "preact";
import { format, parse } from "../refs";
import { point, show } from "../state";

/** From this length on a code link is a line of code rather than a name, and looks like one. */
const LONG = 42;

interface RefLinkProps {
  readonly build: string;
  /** As a text: see schema.py. */
  readonly to: string;
  readonly code?: boolean;
  readonly children: ComponentChildren;
}

export function RefLink({ build, to, code = false, children }: RefLinkProps) {
  const ref = parse(to);
  if (!ref) return code ? <code>{children}</code> : <>{children}</>;
  const here = { build, ref };
  const long = code && typeof children === "string" && children.length > LONG;
  return (
    <a
      class={`ref${code ? " code" : ""}${long ? " long" : ""}`}
      data-ref={format(ref)}
      // The address is that of the page: choosing changes the state, which the address follows.
      href="#"
      onClick={(event) => {
        event.preventDefault();
        show(here, event.ctrlKey || event.metaKey);
      }}
      onPointerEnter={() => point(here)}
      onPointerLeave={() => point(null)}
      onFocus={() => point(here)}
      onBlur={() => point(null)}
    >
      {children}
    </a>
  );
}
