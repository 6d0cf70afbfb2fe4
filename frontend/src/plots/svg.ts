// A drawing of the page as a standalone SVG document, with its styles inlined.

const PROPERTIES = [
  "fill", "stroke", "stroke-width", "stroke-dasharray", "stroke-opacity", "fill-opacity", "opacity",
  "font-family", "font-size", "font-weight", "text-anchor", "dominant-baseline", "paint-order", "stroke-linejoin",
] as const;

export function standalone(svg: SVGSVGElement, title: string): string {
  const copy = svg.cloneNode(true) as SVGSVGElement;
  inline(svg, copy);
  const { width, height } = svg.getBoundingClientRect();
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  copy.setAttribute("width", String(Math.round(width)));
  copy.setAttribute("height", String(Math.round(height)));
  if (!copy.getAttribute("viewBox")) copy.setAttribute("viewBox", `0 0 ${Math.round(width)} ${Math.round(height)}`);
  const back = document.createElementNS("http://www.w3.org/2000/svg", "rect");
  back.setAttribute("width", "100%");
  back.setAttribute("height", "100%");
  back.setAttribute("fill", getComputedStyle(document.documentElement).getPropertyValue("--panel").trim() || "white");
  const name = document.createElementNS("http://www.w3.org/2000/svg", "title");
  name.textContent = title;
  copy.prepend(name, back);
  return new XMLSerializer().serializeToString(copy);
}

function inline(from: Element, to: Element): void {
  const style = getComputedStyle(from);
  for (const property of PROPERTIES) {
    const found = style.getPropertyValue(property);
    if (found) to.setAttribute(property, found);
  }
  for (const name of ["class", "style", "tabindex", "role"]) to.removeAttribute(name);
  [...from.children].forEach((child, n) => {
    const other = to.children[n];
    if (other) inline(child, other);
  });
}
