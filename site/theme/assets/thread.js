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

  const shown = panes.map(({ title, rows }, p) => {
    const body = element("div", { className: "rows", tabIndex: 0, role: "listbox" });
    body.setAttribute("aria-label", title);
    const lines = rows.map((row, n) => {
      const line = element("div", { className: "row", textContent: row.text || " " });
      line.setAttribute("role", "option");
      line.id = `thread-${p}-${n}`;
      line.dataset.row = String(n);
      return line;
    });
    body.append(...lines);
    const take = (n) => {
      choose(rows[n].layers, body, rows[n].loop);
      lines[n].classList.add("at");
      lines[n].setAttribute("aria-selected", "true");
      body.setAttribute("aria-activedescendant", lines[n].id);
    };
    body.addEventListener("click", (event) => {
      const n = Number(event.target.closest(".row")?.dataset.row ?? -1);
      if (rows[n]?.layers.length) take(n);
    });
    body.addEventListener("keydown", (event) => {
      const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (!step) return;
      event.preventDefault();
      const last = lines.findIndex((line) => line.classList.contains("at"));
      const seen = (line) => line.classList.contains("on") && line.offsetTop > body.scrollTop;
      const at = last < 0 ? lines.findIndex(seen) - step : last;
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
    // Text fades where it goes on beyond the pane.
    const fade = () => {
      const { scrollLeft, scrollTop, scrollWidth, scrollHeight, clientWidth, clientHeight } = body;
      body.classList.toggle("left", scrollLeft > 1);
      body.classList.toggle("right", scrollLeft + clientWidth < scrollWidth - 1);
      body.classList.toggle("above", scrollTop > 1);
      body.classList.toggle("below", scrollTop + clientHeight < scrollHeight - 1);
    };
    body.addEventListener("scroll", fade, { passive: true });
    new ResizeObserver(fade).observe(body);
    return { pane, body, rows, lines, count };
  });
  document.getElementById("thread-panes").append(...shown.map(({ pane }) => pane));

  // Of the runs of rows that share a chosen layer: the one in the kernel that takes most of the time;
  // then with the fewest other layers; then the longest.
  function heart(rows, chosen) {
    const key = ({ layers, us }) => `${us} ${layers}`;
    let best = null;
    for (let n = 0; n < rows.length; ) {
      const { layers, us = 0 } = rows[n];
      let end = n + 1;
      while (end < rows.length && key(rows[end]) === key(rows[n])) end += 1;
      if (layers.some((layer) => chosen.includes(layer))) {
        const rank = [us, -layers.length, end - n];
        const k = best ? rank.findIndex((value, i) => value !== best.rank[i]) : 0;
        if (!best || (k >= 0 && rank[k] > best.rank[k])) best = { rank, from: n, to: end };
      }
      n = end;
    }
    return best;
  }

  // Scrolls a pane to rows; past the indentation that they share if it is wide.
  function show(body, lines, from, to) {
    const widths = lines.slice(from, Math.min(to, from + 16)).map((line) => {
      const range = document.createRange();
      range.setStart(line.firstChild, 0);
      range.setEnd(line.firstChild, line.textContent.search(/\S|$/));
      return range.getBoundingClientRect().width;
    });
    const indented = Math.min(...widths);
    const left = indented > body.clientWidth / 4 ? indented : 0;
    body.scrollTo(left, lines[from].offsetTop - body.clientHeight / 3);
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
        lines[n].removeAttribute("aria-selected");
        if (wanted) marked += 1;
      });
      count.textContent = ` ${marked} of ${rows.length} lines`;
      const toLoop = loop !== undefined && rows === panes[2].rows;
      if (toLoop) lines[loop].classList.add("loop");
      const found = toLoop ? { from: loop, to: loop + 1 } : heart(rows, chosen);
      if (found && body !== from) show(body, lines, found.from, found.to);
    }
  }

  choose([layers.reduce((best, layer, n) => (layer.us > layers[best].us ? n : best), 0)]);
})();
