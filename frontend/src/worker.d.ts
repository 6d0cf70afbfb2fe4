// The module for `import text from "worker:./file.ts"`, made by build.mjs: the bundled worker as text.
declare module "worker:*" {
  const text: string;
  export default text;
}
