// Runs all tests of the page: bundles each into dist-test/ and hands them to Node's test runner.
import { spawnSync } from "node:child_process";
import { readdirSync, rmSync } from "node:fs";
import path from "node:path";
import { fileURLToPath } from "node:url";
import * as esbuild from "esbuild";

const frontend = path.join(path.dirname(fileURLToPath(import.meta.url)), "..");
process.chdir(frontend);
const tests = readdirSync("test").filter((name) => name.endsWith(".test.ts"));
rmSync("dist-test", { recursive: true, force: true });
await esbuild.build({
  entryPoints: tests.map((name) => path.join("test", name)),
  bundle: true,
  platform: "node",
  format: "esm",
  outdir: "dist-test",
  jsx: "automatic",
  jsxImportSource: "preact",
  logLevel: "warning",
});
const files = tests.map((name) => path.join("dist-test", name.replace(/\.ts$/, ".js")));
process.exit(spawnSync(process.execPath, ["--test", ...files], { stdio: "inherit" }).status ?? 1);
