// What build.mjs makes of `import text from "worker:./file.ts"`: the bundled worker as text.
declare module "worker:*" {
  const text: string;
  export default text;
}
