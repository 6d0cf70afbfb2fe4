// The status line: a description of the hovered thing, or hints if nothing is hovered.

import { buildOf, value, type Build } from "../builds";
import { layerColor } from "../colors";
import type { Here } from "../refs";
import { hover, reachIn } from "../state";
import { percent, shareOf } from "../story/shares";
import type { Reach } from "../thread";

/** The most layers to name. */
const NAMED = 4;

export function StatusLine() {
  const here = hover.value;
  const build = here && buildOf(here.build);
  return (
    <footer class="status-line">
      {here && build ? <Pointed here={here} build={build} /> : <Hint />}
    </footer>
  );
}

function Hint() {
  return (
    <span class="hint">
      <b>Hover</b> a line to see its counterparts · <b>click</b> it for its story · <kbd>/</kbd> search · <kbd>Ctrl K</kbd> all commands ·{" "}
      <kbd>?</kbd> help
    </span>
  );
}

function Pointed({ here, build }: { readonly here: Here; readonly build: Build }) {
  const overview = value(build.overview.value);
  const reach = reachIn(build.id).value;
  if (!overview) return null;
  const layers = [...reach.layers];
  const share = shareOf(build, here.ref);
  const kernels = [...reach.kernels.keys()];
  return (
    <>
      <b>{nameOf(here, build)}</b>
      {layers.length > 0 && (
        <span class="status-layers">
          {layers.slice(0, NAMED).map((layer) => (
            <span key={layer} class="layer-name">
              <i class="dot" style={{ background: layerColor(layer) }} />
              {overview.layers[layer]?.name}
            </span>
          ))}
          {layers.length > NAMED && <span class="dim">and {layers.length - NAMED} more</span>}
        </span>
      )}
      <span class="grow" />
      <span class="dim">{counts(reach, kernels.length, overview.kernels[kernels[0] ?? -1]?.name ?? "")}</span>
      {share && share.basis === "time" && <b>{percent(share.share)} of the kernels' time</b>}
      {share?.iterations && <span class="dim">{share.iterations}</span>}
    </>
  );
}

function nameOf({ ref }: Here, build: Build): string {
  const overview = value(build.overview.value);
  switch (ref.kind) {
    case "layer": {
      const layer = overview?.layers.find((l) => l.name === ref.name);
      return [layer?.op || "layer", layer && layer.fate !== "kernel" ? `(${layer.fate})` : ""].filter(Boolean).join(" ");
    }
    case "kernel":
      return `kernel ${overview?.kernels[ref.kernel]?.name ?? ref.kernel}`;
    case "region": {
      const region = overview?.regions[ref.region];
      return `region ${region?.name ?? ref.region} on ${region?.backend ?? "another backend"}`;
    }
    case "stage":
      return `stage ${overview?.stages[ref.stage]?.name ?? ref.stage}`;
    case "node":
      return `node of ${overview?.stages[ref.stage]?.name ?? ref.stage}`;
    case "source":
      return `line ${ref.line} of the model`;
    default: {
      const kind = { loop: "loop line", llvm: "LLVM line", asm: "instruction" }[ref.kind];
      return `${kind} ${ref.line} of ${overview?.kernels[ref.kernel]?.name ?? ref.kernel}`;
    }
  }
}

function counts(reach: Reach, kernels: number, name: string): string {
  const nodes = reach.nodes[reach.nodes.length - 1]?.size ?? 0;
  const parts = [];
  if (nodes) parts.push(`${nodes} ${nodes === 1 ? "node" : "nodes"} in the last stage`);
  if (kernels) parts.push(kernels === 1 ? `in kernel ${name}` : `in ${kernels} kernels`);
  return parts.join(" · ");
}

