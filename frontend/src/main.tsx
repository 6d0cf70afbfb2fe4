// Starts the page.

import { effect } from "@preact/signals";
import { render } from "preact";
import { App } from "./App";
import { watchBuilds } from "./build/builder";
import { startPanes } from "./build/starter";
import { begin } from "./builds";
import { linkBuilds } from "./compare/diffs";
import { guardTexts } from "./parts/names";
import { source } from "./source";
import { theme } from "./state";
import { connect, read } from "./url";

effect(() => {
  document.documentElement.dataset["theme"] = theme.value;
});

guardTexts();

async function start(): Promise<void> {
  const root = document.getElementById("app");
  if (!root) return;
  const begun = begin(source());
  read(location.hash);
  root.textContent = "";
  render(<App />, root);
  await begun;
  watchBuilds();
  startPanes();
  linkBuilds();
  connect();
}

void start();
