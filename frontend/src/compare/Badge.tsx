import { builds, type Build } from "../builds";

/** A build's short name. */
export function letter(id: string): string {
  return id.toUpperCase();
}

/** The build that a pane shows, if there are several. */
export function BuildBadge({ build }: { readonly build: Build }) {
  if (builds.value.length < 2) return null;
  const { model, options } = build.info.value;
  return (
    <b class={`badge of-${build.id}`} title={`${model}, ${options.precision}, opt level ${options.opt_level}`} data-build={build.id}>
      {letter(build.id)}
    </b>
  );
}
