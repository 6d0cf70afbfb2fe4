// The page's own icons: strokes on a grid of 16, in the color of the writing around them.

const PATHS = {
  search: "M7 12A5 5 0 1 0 7 2a5 5 0 0 0 0 10zM10.6 10.6 14 14",
  close: "M4 4l8 8M12 4l-8 8",
  help: "M6 6a2 2 0 1 1 3 1.8c-.7.4-1 .8-1 1.6M8 12v.1",
  story: "M3 2.5h10v11H3zM5.5 5.5h5M5.5 8h5M5.5 10.5h3",
  share: "M8 10V2M5 4.5 8 1.8l3 2.7M4 7H3v7h10V7h-1",
  copy: "M5.5 5.5h8v8h-8zM10.5 5.5v-3h-8v8h3",
  save: "M8 2v8M5 7.5 8 10.3l3-2.8M3 13.5h10",
  back: "M9.5 3.5 5 8l4.5 4.5",
  forward: "M6.5 3.5 11 8l-4.5 4.5",
  dark: "M13 9.5A5.5 5.5 0 0 1 6.5 3 5.5 5.5 0 1 0 13 9.5z",
  light: "M8 11a3 3 0 1 0 0-6 3 3 0 0 0 0 6zM8 1.2v1.6M8 13.2v1.6M1.2 8h1.6M13.2 8h1.6M3.2 3.2l1.1 1.1M11.7 11.7l1.1 1.1M12.8 3.2l-1.1 1.1M4.3 11.7l-1.1 1.1",
  auto: "M8 14A6 6 0 1 0 8 2a6 6 0 0 0 0 12zM8 2v12M8 5h4.6M8 8h6M8 11h4.6",
  play: "M5 3l8 5-8 5z",
  pause: "M5.5 3v10M10.5 3v10",
  first: "M3.5 3v10M12.5 3.5 6 8l6.5 4.5z",
  last: "M12.5 3v10M3.5 3.5 10 8l-6.5 4.5z",
  up: "M8 13V3M4 7l4-4 4 4",
  down: "M8 3v10M4 9l4 4 4-4",
  plus: "M8 3v10M3 8h10",
  menu: "M4 6.5 8 10.5 12 6.5",
  // What sections of a story are about.
  layer: "M8 2 14 5 8 8 2 5zM2 8l6 3 6-3M2 11l6 3 6-3",
  source: "M4 1.8h5.5L12.5 5v9.2H4zM9.5 1.8V5h3",
  import: "M2.5 8H10M7 4.8 10.2 8 7 11.2M10.5 2.5h3v11h-3",
  fold: "M8 1.5v5M5.5 4.2 8 6.6l2.5-2.4M8 14.5v-5M5.5 11.8 8 9.4l2.5 2.4M2.5 8h1.2M12.3 8h1.2",
  layout: "M2.5 2.5h11v11h-11zM2.5 6.2h11M2.5 9.8h11M6.2 2.5v11M9.8 2.5v11",
  fuse: "M6 10a4 4 0 1 0 0-8 4 4 0 0 0 0 8zM10 14a4 4 0 1 0 0-8 4 4 0 0 0 0 8z",
  pass: "M2.5 4.5h7M2.5 8h11M2.5 11.5h7M11.5 4.5h2M11.5 11.5h2",
  kernel: "M4.5 4.5h7v7h-7zM6.5 2v2.5M9.5 2v2.5M6.5 11.5V14M9.5 11.5V14M2 6.5h2.5M2 9.5h2.5M11.5 6.5H14M11.5 9.5H14",
  region: "M2 3h5v4H2zM9 9h5v4H9zM7 5h4.5v4",
  place: "M8 14S3 9.5 3 6a5 5 0 0 1 10 0c0 3.5-5 8-5 8zM8 7.6a1.6 1.6 0 1 0 0-3.2 1.6 1.6 0 0 0 0 3.2z",
  loops: "M3 3h10M5 6.3h8M7 9.6h6M9 13h4",
  code: "M5.5 4.5 2 8l3.5 3.5M10.5 4.5 14 8l-3.5 3.5M9 3 7 13",
  time: "M8 14A6 6 0 1 0 8 2a6 6 0 0 0 0 12zM8 4.5V8l2.5 1.7",
  error: "M8 2 14.5 13.5h-13zM8 6.3v3.4M8 11.6v.1",
  memory: "M2 4.5h12v6H2zM4.5 10.5v2M8 10.5v2M11.5 10.5v2M5 6.5v2M8 6.5v2M11 6.5v2",
  remark: "M2.5 3h11v7.5h-6L4.5 13v-2.5h-2z",
  dot: "M8 9.6A1.6 1.6 0 1 0 8 6.4a1.6 1.6 0 0 0 0 3.2z",
} as const;

export type IconName = keyof typeof PATHS;

export function isIcon(name: string): name is IconName {
  return Object.hasOwn(PATHS, name);
}

export function Icon({ name, size = 15 }: { readonly name: IconName; readonly size?: number }) {
  return (
    <svg class="glyph" width={size} height={size} viewBox="0 0 16 16" aria-hidden="true">
      <path d={PATHS[name]} fill="none" stroke="currentColor" stroke-width="1.4" stroke-linecap="round" stroke-linejoin="round" />
    </svg>
  );
}
