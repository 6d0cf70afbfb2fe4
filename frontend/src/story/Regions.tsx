// The regions that other backends run, and the measured placement that chose them.

import { backendColor } from "../backends";
import type { Build } from "../builds";
import { timeText } from "../parts/figures";
import { RefLink } from "../parts/RefLink";
import { layersText } from "../plots/words";
import type { Alternative, Heat, Overview, PlacedRegion } from "../wire";

/** The most layers of a region to name. */
const NAMED = 4;

interface Props {
  readonly build: Build;
  readonly overview: Overview;
  readonly heat: Heat | null;
}

export function Regions({ build, overview, heat }: Props) {
  if (!overview.regions.length) return null;
  const color = backendColor.value;
  return (
    <>
      <h3>On other backends</h3>
      <ul class="regions">
        {overview.regions.map((region) => (
          <li key={region.index}>
            <i class="dot" aria-hidden="true" style={{ background: color(region.backend) }} />
            <RefLink build={build.id} to={`region:${region.index}`}>{region.name}</RefLink>
            {` on ${region.backend}`}
            {heat?.regions[region.index] != null && <b>{` ${timeText(heat.regions[region.index] ?? 0)}`}</b>}
            <p class="dim">
              {layersText(overview, region, NAMED)}
              {region.copies.length > 0 && `; ${region.copies.length} ${region.copies.length === 1 ? "copy" : "copies"} at its borders`}
            </p>
          </li>
        ))}
      </ul>
    </>
  );
}

/** The measured plans, and what the parts of the chosen one would cost elsewhere. */
export function Placed({ build, overview }: { readonly build: string; readonly overview: Overview }) {
  const { placement } = overview;
  if (!placement) return null;
  return (
    <details class="placed">
      <summary>Placed by measured costs: {placement.plans.find((plan) => plan.chosen)?.name}</summary>
      <table class="placement">
        <thead>
          <tr><th scope="col">as a whole</th><th scope="col" class="right">a call</th><th scope="col" /></tr>
        </thead>
        <tbody>
          {placement.plans.map((plan) => (
            <tr key={plan.name}>
              <th scope="row">{plan.name}</th>
              <td class="right">{plan.seconds === null ? "failed" : secondsText(plan.seconds)}</td>
              <td>{plan.chosen ? "chosen" : plan.failure}</td>
            </tr>
          ))}
        </tbody>
      </table>
      <ul class="regions">
        {placement.regions.map((region, n) => (
          <li key={n}>
            <Part build={build} overview={overview} region={region} />
          </li>
        ))}
      </ul>
      <p class="dim">{placement.summary}</p>
    </details>
  );
}

function Part({ build, overview, region }: { readonly build: string; readonly overview: Overview; readonly region: PlacedRegion }) {
  const first = overview.layers[region.layers[0] ?? -1];
  return (
    <>
      <i class="dot" aria-hidden="true" style={{ background: backendColor.value(region.backend) }} />
      {first ? <RefLink build={build} to={`layer:${first.name}`}>{layersText(overview, region, NAMED)}</RefLink> : region.ops.join(", ")}
      {` on ${region.backend}: `}
      <b>{costText(region.seconds, region.borders)}</b>
      <p class="dim">{region.others.map(otherText).join("; ")}</p>
    </>
  );
}

function otherText(other: Alternative): string {
  return other.seconds === null ? `${other.backend}: no, ${other.why_not}` : `${other.backend}: ${costText(other.seconds, other.borders)}`;
}

function costText(seconds: number, borders: number): string {
  return `${secondsText(seconds)} + ${secondsText(borders)} at borders`;
}

function secondsText(seconds: number): string {
  return timeText(1e9 * seconds);
}
