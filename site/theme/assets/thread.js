// The front page's panes: one network as graph, kernels, loops and instructions. Choosing a layer or
// a row marks the rows of the same layers in every pane, and an instruction also marks its loop.
"use strict";
(() => {
  const { machine, layers, panes } = window.CLEW_THREAD;
  const element = (tag, options = {}) => Object.assign(document.createElement(tag), options);
  document.getElementById("thread-machine").textContent = machine;

  const total = Math.max(...layers.map((layer) => layer.us));
  const buttons = layers.map((layer, n) => {
    const button = element("button", { type: "button", className: "layer" });
    const bar = element("span", { className: "bar" });
    bar.style.width = `${Math.max(2, (100 * layer.us) / total)}%`;
    button.append(
      element("b", { textContent: layer.name }),
      element("span", { textContent: layer.type, className: "type" }),
      element("span", { textContent: `${layer.us.toPrecision(3)} µs`, className: "time" }),
      bar,
    );
    button.addEventListener("click", () => choose([n]));
    return button;
  });
  document.getElementById("thread-layers").append(...buttons);

  const shown = panes.map(({ title, rows }) => {
    const body = element("div", { className: "rows", tabIndex: 0, role: "listbox" });
    body.setAttribute("aria-label", title);
    const lines = rows.map((row, n) => {
      const line = element("div", { className: "row", textContent: row.text || " " });
      line.setAttribute("role", "option");
      line.dataset.row = String(n);
      return line;
    });
    body.append(...lines);
    const take = (n) => {
      choose(rows[n].layers, body, rows[n].loop);
      lines[n].classList.add("at");
    };
    body.addEventListener("click", (event) => {
      const n = Number(event.target.closest(".row")?.dataset.row ?? -1);
      if (rows[n]?.layers.length) take(n);
    });
    body.addEventListener("keydown", (event) => {
      const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (!step) return;
      event.preventDefault();
      const at = lines.findIndex((line) => line.classList.contains("at"));
      for (let n = at + step; n >= 0 && n < lines.length; n += step) {
        if (!rows[n].layers.length) continue;
        take(n);
        lines[n].scrollIntoView({ block: "nearest" });
        break;
      }
    });
    const pane = element("section", { className: "pane" });
    const count = element("span", { className: "count" });
    const head = element("h2", { textContent: title });
    head.append(count);
    pane.append(head, body);
    return { pane, body, rows, lines, count };
  });
  document.getElementById("thread-panes").append(...shown.map(({ pane }) => pane));

  // The start of the longest run of rows that share the chosen layers with the fewest others.
  function heart(rows, chosen) {
    let best = null;
    for (let n = 0; n < rows.length; ) {
      const { layers } = rows[n];
      let end = n + 1;
      while (end < rows.length && String(rows[end].layers) === String(layers)) end += 1;
      if (layers.some((layer) => chosen.includes(layer))) {
        const run = { at: n, length: end - n, layers: layers.length };
        const closer = best && run.layers < best.layers;
        const longer = best && run.layers === best.layers && run.length > best.length;
        if (!best || closer || longer) best = run;
      }
      n = end;
    }
    return best && best.at;
  }

  // `from` is the pane that was clicked, which does not scroll; `loop` is a row of the loops' pane.
  function choose(chosen, from = null, loop = undefined) {
    buttons.forEach((button, n) => button.setAttribute("aria-pressed", String(chosen.includes(n))));
    for (const { body, rows, lines, count } of shown) {
      let marked = 0;
      rows.forEach((row, n) => {
        const wanted = row.layers.some((layer) => chosen.includes(layer));
        lines[n].classList.toggle("on", wanted);
        lines[n].classList.remove("at", "loop");
        if (wanted) marked += 1;
      });
      count.textContent = ` ${marked} of ${rows.length} lines`;
      const toLoop = loop !== undefined && rows === panes[2].rows;
      if (toLoop) lines[loop].classList.add("loop");
      const shownRow = toLoop ? loop : heart(rows, chosen);
      if (shownRow !== null && body !== from) {
        body.scrollTop = lines[shownRow].offsetTop - body.clientHeight / 3;
      }
    }
  }

  choose([layers.reduce((best, layer, n) => (layer.us > layers[best].us ? n : best), 0)]);
})();
