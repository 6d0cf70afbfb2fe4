// The story of the selection, in a panel that can be folded and resized.

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { buildOf, builds } from "../builds";
import { ErrorBox } from "../parts/ErrorBox";
import { Icon } from "../parts/Icon";
import type { Ref } from "../refs";
import { current, story } from "../state";
import { copyStory, saveStory } from "./exports";
import { Figures } from "./Figures";
import { Inside } from "./Inside";
import { Sections } from "./Sections";
import { Summary } from "./Summary";
import { told, type Told } from "./told";
import { Values } from "./Values";

const LEAST = 240;
const MOST = 720;
const STEP = 24;

export function StoryPanel() {
  const [width, setWidth] = useState(0);
  const now = told.value;
  const build = buildOf(current.value) ?? builds.value[0];
  const style = width ? { "--story-width": `${width}px` } : {};
  return (
    <aside class="story" aria-label="Story" style={style}>
      <Edge onWidth={setWidth} />
      <header>
        <button class="quiet" title="Back (Alt ←)" aria-label="Back" onClick={() => history.back()}>
          <Icon name="back" />
        </button>
        <button class="quiet" title="Forward (Alt →)" aria-label="Forward" onClick={() => history.forward()}>
          <Icon name="forward" />
        </button>
        <h2>Story</h2>
        <span class="grow" />
        {now && (
          <>
            <button class="quiet" title="Copy the story as text" aria-label="Copy as text" onClick={copyStory}>
              <Icon name="copy" />
            </button>
            <button class="quiet" title="Save the story as text" aria-label="Save as text" onClick={saveStory}>
              <Icon name="save" />
            </button>
          </>
        )}
        <button class="quiet" title="Fold the story away (s)" aria-label="Fold away" onClick={() => (story.value = false)}>
          <Icon name="close" />
        </button>
      </header>
      <div class="story-body" tabIndex={0}>
        {now ? <Tale now={now} /> : build ? <Summary build={build} /> : null}
      </div>
    </aside>
  );
}

function Tale({ now }: { readonly now: Told }) {
  const { build, ref, story: asked } = now;
  if (asked.state === "loading") return <p class="empty">Reading …</p>;
  if (asked.state === "failed") return <ErrorBox error={asked.error} />;
  const tale = asked.value;
  return (
    <article data-about={tale.about}>
      <h2 class={isCode(ref) ? "story-title code" : "story-title"} title={tale.title}>{tale.title}</h2>
      {tale.subtitle && <p class="story-subtitle">{tale.subtitle}</p>}
      <Figures build={build} about={ref} />
      {ref.kind === "layer" && <Values build={build} layer={ref.name} />}
      {ref.kind === "region" && <Inside build={build} region={ref.region} />}
      <Sections build={build.id} sections={tale.sections} />
    </article>
  );
}

function isCode({ kind }: Ref): boolean {
  return kind === "loop" || kind === "llvm" || kind === "asm";
}

/** The panel's left edge: drag it, or move it with the arrows. */
function Edge({ onWidth }: { readonly onWidth: (width: number) => void }) {
  const widthOf = (edge: HTMLElement): number => edge.parentElement?.offsetWidth ?? LEAST;
  const set = (width: number): void => onWidth(Math.round(Math.min(MOST, innerWidth * 0.6, Math.max(LEAST, width))));
  const drag = (event: JSX.TargetedPointerEvent<HTMLDivElement>): void => {
    const edge = event.currentTarget;
    const start = widthOf(edge) + event.clientX;
    edge.setPointerCapture(event.pointerId);
    const move = (moved: PointerEvent): void => set(start - moved.clientX);
    edge.addEventListener("pointermove", move);
    edge.addEventListener("lostpointercapture", () => edge.removeEventListener("pointermove", move), { once: true });
    event.preventDefault();
  };
  return (
    <div
      class="edge"
      role="separator"
      aria-orientation="vertical"
      aria-label="Width of the story"
      aria-valuemin={LEAST}
      aria-valuemax={MOST}
      tabIndex={0}
      onPointerDown={drag}
      onDblClick={() => onWidth(0)}
      onKeyDown={(event) => {
        const by = event.key === "ArrowLeft" ? STEP : event.key === "ArrowRight" ? -STEP : 0;
        if (by) set(widthOf(event.currentTarget) + by);
      }}
    />
  );
}
