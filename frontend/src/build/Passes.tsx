// The passes of a build: each is set to run by the opt level, always, or never.

import { useState } from "preact/hooks";
import { Prose } from "../parts/Prose";
import type { Choices } from "../wire";
import type { PassWish } from "./options";

interface Props {
  readonly offers: Choices;
  readonly wishes: ReadonlyMap<string, PassWish>;
  readonly onChange: (wishes: ReadonlyMap<string, PassWish>) => void;
}

const WISHES: readonly (readonly [PassWish, string])[] = [
  ["auto", "by the opt level"],
  ["on", "run"],
  ["off", "do not run"],
];

export function Passes({ offers, wishes, onChange }: Props) {
  const [text, setText] = useState("");
  const names = Object.keys(offers.passes);
  const found = names.filter((name) => `${name} ${offers.passes[name]}`.toLowerCase().includes(text.trim().toLowerCase()));
  const wish = (name: string, to: PassWish): void => {
    const next = new Map(wishes);
    if (to === "auto") next.delete(name);
    else next.set(name, to);
    onChange(next);
  };
  return (
    <fieldset class="passes">
      <legend>
        passes{wishes.size > 0 && <> · <b>{wishes.size} changed</b></>}
      </legend>
      <div class="passes-head">
        <input type="search" placeholder="filter passes" aria-label="filter passes" value={text} onInput={(e) => setText(e.currentTarget.value)} />
        <button type="button" disabled={!wishes.size} onClick={() => onChange(new Map())}>Reset</button>
      </div>
      <ul>
        {found.map((name) => {
          const now = wishes.get(name) ?? "auto";
          return (
            <li key={name} class={now} data-pass={name}>
              <span class="text">
                <b>{name}</b>
                <span class="dim"><Prose text={offers.passes[name] ?? ""} /></span>
              </span>
              <span class="wish" role="radiogroup" aria-label={name}>
                {WISHES.map(([value, title]) => (
                  <label key={value} title={title} class={now === value ? "picked" : ""}>
                    <input type="radio" name={`pass-${name}`} checked={now === value} onChange={() => wish(name, value)} />
                    {value}
                  </label>
                ))}
              </span>
            </li>
          );
        })}
        {!found.length && <li class="dim">no pass has this name</li>}
      </ul>
    </fieldset>
  );
}
