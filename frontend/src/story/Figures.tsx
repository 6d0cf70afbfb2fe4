// Small figures under a story's title: a bar for the share of time, a row of stages.

import { value, type Build } from "../builds";
import { format, type Ref } from "../refs";
import { NOTHING } from "../thread";
import { show } from "../state";
import { changes, percent, shareOf } from "./shares";

export function Figures({ build, about }: { readonly build: Build; readonly about: Ref }) {
  const overview = value(build.overview.value);
  const reach = build.thread.value?.reach(about, build) ?? NOTHING;
  const share = shareOf(build, about);
  const changed = changes(reach);
  return (
    <div class="figures">
      {share && (
        <div class="share" role="img" aria-label={`${percent(share.share)} of the ${share.basis}`}>
          <div class="share-text">
            <b>{percent(share.share)}</b> of {share.basis === "time" ? "the kernels' time" : "the arithmetic"}
            <span class="grow" />
            <span class="dim" title={share.text}>{share.text.split(" of ")[0]}</span>
          </div>
          <div class="track">
            <div class="fill" style={{ width: `${Math.max(0.5, share.share * 100)}%` }} />
          </div>
          {share.iterations && <div class="share-iterations dim">{share.iterations}</div>}
        </div>
      )}
      {overview && changed.some(Boolean) && (
        <div class="stage-line" role="group" aria-label="Stages in which it changed">
          {overview.stages.map((stage, n) => {
            const state = changed[n] ? "changed" : reach.nodes[n]?.size ? "there" : "gone";
            const said = { changed: "changed here", there: "as before", gone: "not there" }[state];
            return (
              <button
                key={`${format(about)} ${n}`}
                class={`stage-tick ${state}`}
                tabIndex={-1}
                title={`${stage.index} ${stage.name}: ${said}`}
                aria-label={`${stage.name}: ${said}`}
                onClick={() => show({ build: build.id, ref: { kind: "stage", stage: stage.index } })}
              />
            );
          })}
        </div>
      )}
    </div>
  );
}
