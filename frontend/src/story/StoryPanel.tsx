// The story of what is chosen. Stand-in.

import { selected } from "../state";
import { format } from "../refs";

export function StoryPanel() {
  const here = selected.value;
  return <aside class="story">{here ? format(here.ref) : "Choose a layer, a kernel or a line to read its story."}</aside>;
}
