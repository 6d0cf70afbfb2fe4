// Builds the page into ../src/clew/static: one script, one style sheet, index.html.
// The layout worker is bundled first and travels inside the script as text, so that the page served
// by `clew explore` and the one file that `clew report` writes start it in the same way.
import { readFile, writeFile, mkdir, rm } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import path from "node:path";
import * as esbuild from "esbuild";

const here = path.dirname(fileURLToPath(import.meta.url));
const out = process.env.CLEW_STATIC ?? path.join(here, "..", "src", "clew", "static");
const watch = process.argv.includes("--watch");

/** `import text from "worker:./layout.worker.ts"` gives the bundled worker as text. */
const workers = {
  name: "workers",
  setup(build) {
    build.onResolve({ filter: /^worker:/ }, (found) => ({
      path: path.resolve(found.resolveDir, found.path.slice("worker:".length)),
      namespace: "worker",
    }));
    build.onLoad({ filter: /.*/, namespace: "worker" }, async (found) => {
      const made = await esbuild.build({ ...common, entryPoints: [found.path], write: false });
      return { contents: made.outputFiles[0].text, loader: "text", watchFiles: [found.path] };
    });
  },
};

const common = {
  bundle: true,
  minify: !watch,
  format: "iife",
  target: "es2022",
  legalComments: "eof",
  logLevel: "warning",
};

const page = {
  ...common,
  entryPoints: { app: path.join(here, "src", "main.tsx"), style: path.join(here, "src", "styles", "main.css") },
  outdir: out,
  jsx: "automatic",
  jsxImportSource: "preact",
  plugins: [workers],
};

await mkdir(out, { recursive: true });
// What tools/build_explorer.py says of the page no longer holds.
await rm(path.join(out, ".digest"), { force: true });
await writeFile(path.join(out, "index.html"), await readFile(path.join(here, "index.html")));
if (watch) {
  const context = await esbuild.context({ ...page, sourcemap: "inline" });
  await context.watch();
} else {
  await esbuild.build(page);
}
