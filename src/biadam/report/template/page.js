// Draws the charts from the JSON of the page, and sorts its tables.
"use strict";

const { axes, panels } = JSON.parse(document.getElementById("data").textContent);
const controls = document.getElementById("controls");
const plots = [...document.querySelectorAll(".plot")].map((place) => ({
  place,
  panel: panels[place.dataset.panel],
}));
const hidden = new Set();

/** What the switches say. */
function switches() {
  const of = new FormData(controls);
  const [first] = panels.flatMap((panel) => panel.curves);
  return {
    axis: of.get("axis"),
    curve: of.get("curve") ?? first,
    logX: of.has("logX"),
    logY: of.has("logY"),
    bands: of.has("bands"),
    references: of.has("references"),
  };
}

function element(name, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function html(name, className, ...children) {
  const made = document.createElement(name);
  if (className) made.className = className;
  made.append(...children);
  return made;
}

const words = (name) => name.replaceAll("_", " ");

/** With so many significant digits; fewer where `least` allows to leave zeros out. */
function number(value, digits = 4, least = digits) {
  const size = Math.abs(value);
  if (size >= 1e7 || (size > 0 && size < 1e-4)) return value.toExponential(digits - 1);
  if (size >= 1e4) return value.toLocaleString("en", { maximumFractionDigits: 0 });
  return value.toLocaleString("en", { minimumSignificantDigits: least, maximumSignificantDigits: digits });
}

function tickLabel(value) {
  const size = Math.abs(value);
  if (size >= 1e3) return value.toLocaleString("en", { notation: "compact", maximumSignificantDigits: 3 });
  if (size > 0 && size < 1e-3) return value.toExponential(0);
  return String(Number(value.toPrecision(6)));
}

/** From values to pixels and back; on a logarithmic scale only what is above zero has a place. */
function scale([low, high], [from, to], log) {
  const map = log ? Math.log10 : (v) => v;
  const back = log ? (v) => 10 ** v : (v) => v;
  const span = map(high) - map(low) || 1;
  return {
    has: (v) => Number.isFinite(v) && (!log || v > 0),
    to: (v) => from + ((map(v) - map(low)) / span) * (to - from),
    from: (p) => back(map(low) + ((p - from) / (to - from)) * span),
    ticks: (most) => (log && logTicks(low, high, most)) || linearTicks(low, high, most),
  };
}

function linearTicks(low, high, most) {
  const rough = (high - low) / most || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((m) => m * power >= rough * 0.999);
  const first = Math.ceil(low / step - 1e-9);
  const count = Math.floor(high / step + 1e-9) - first + 1;
  return Array.from({ length: count }, (_, i) => (first + i) * step);
}

/** The sparsest of the usual sets that has four ticks; nothing where none has. */
function logTicks(low, high, most) {
  const powers = [];
  for (let p = Math.floor(Math.log10(low)); p <= Math.log10(high); p++) powers.push(p);
  for (const digits of [[1], [1, 3], [1, 2, 5], [1, 1.5, 2, 3, 5, 7]]) {
    const ticks = powers.flatMap((p) => digits.map((d) => d * 10 ** p)).filter((v) => v >= low && v <= high);
    if (ticks.length >= 4) {
      const every = Math.ceil(ticks.length / (most + 2));
      return ticks.filter((_, i) => i % every === 0);
    }
  }
  return null;
}

/** The lines that a panel shows now, with their [at, mean, low, high]. */
function shown(panel, now) {
  return panel.lines
    .filter((line) => !hidden.has(line.name) && line.curves[now.curve]?.[now.axis])
    .map((line) => ({ ...line, points: line.curves[now.curve][now.axis] }));
}

/** Limits of both axes. Losses are cut a little above the usual start: blow-ups would hide the rest. */
function limits(panel, lines, references, now) {
  const at = lines.flatMap(({ points }) => points[0]).filter((v) => !now.logX || v > 0);
  const right = Math.max(...at);
  const means = lines.flatMap(({ points }) => points[1]).concat(references.map(({ value }) => value));
  const usable = means.filter((v) => !now.logY || v > 0);
  let [low, high] = [Math.min(...usable), Math.max(...usable)];
  if (!panel.largest[now.curve]) {
    const starts = lines.map(({ points }) => points[1][0]).sort((a, b) => a - b);
    high = Math.min(high, 1.15 * starts[starts.length >> 1]);
  }
  if (now.logY) return { x: [Math.min(...at), right], y: [low / 1.08, high * 1.04] };
  const room = 0.04 * (high - low || Math.abs(high) || 1);
  return { x: [now.logX ? Math.min(...at) : 0, right], y: [low - room, high + room] };
}

function path(points, x, y) {
  return points
    .filter(([u, v]) => x.has(u) && y.has(v))
    .map(([u, v], i) => `${i ? "L" : "M"}${x.to(u).toFixed(1)} ${y.to(v).toFixed(1)}`)
    .join("");
}

const zip = (at, values) => at.map((u, i) => [u, values[i]]);

function draw(plot) {
  const { place, panel } = plot;
  const now = switches();
  const lines = shown(panel, now);
  place.replaceChildren();
  plot.read = null;
  if (!lines.length) {
    place.append(html("p", "hint", "No line to draw: show a method, or choose another curve."));
    return;
  }
  const references = now.references
    ? panel.references
        .map(({ mark, values }) => ({ mark, value: values[now.curve] }))
        .filter(({ value }) => Number.isFinite(value) && (!now.logY || value > 0))
    : [];
  const width = place.clientWidth;
  const height = Math.round(Math.min(440, Math.max(270, width * 0.68)));
  const edge = { left: 50, right: width - 18, top: 24, bottom: height - 44 };
  const { x: across, y: up } = limits(panel, lines, references, now);
  const x = scale(across, [edge.left, edge.right], now.logX);
  const y = scale(up, [edge.bottom, edge.top], now.logY);

  const clip = `clip-${place.dataset.panel}`;
  const svg = element("svg", {
    viewBox: `0 0 ${width} ${height}`, height, tabindex: 0, role: "img",
    "aria-label": `${words(now.curve)} against ${axes[now.axis]}, ${panel.title}; arrow keys read it`,
  });
  svg.append(
    element("clipPath", { id: clip }, element("rect", {
      x: edge.left, y: edge.top, width: edge.right - edge.left, height: edge.bottom - edge.top,
    })),
    ...x.ticks(width / 90).flatMap((v) => [
      element("line", { class: "grid", x1: x.to(v), x2: x.to(v), y1: edge.top, y2: edge.bottom }),
      element("text", { class: "x tick", x: x.to(v), y: edge.bottom + 16, "text-anchor": "middle" }, tickLabel(v)),
    ]),
    ...y.ticks(height / 45).flatMap((v) => [
      element("line", { class: "grid", x1: edge.left, x2: edge.right, y1: y.to(v), y2: y.to(v) }),
      element("text", { class: "y tick", x: edge.left - 6, y: y.to(v) + 4, "text-anchor": "end" }, tickLabel(v)),
    ]),
    element("text", { class: "x label", x: (edge.left + edge.right) / 2, y: height - 8, "text-anchor": "middle" },
      axes[now.axis]),
  );
  const inside = element("g", { "clip-path": `url(#${clip})` });
  for (const { value } of references) {
    inside.append(element("line", { class: "reference", x1: edge.left, x2: edge.right, y1: y.to(value), y2: y.to(value) }));
  }
  for (const { name, colour, points: [at, mean, low, high] } of now.bands ? lines : []) {
    const floor = (v) => (now.logY ? Math.max(v, up[0] / 10) : v);
    const around = [...zip(at, high), ...zip(at, low.map(floor)).reverse()];
    inside.append(element("path", { class: "band", "data-method": name, d: `${path(around, x, y)}Z`, fill: `var(--line-${colour})` }));
  }
  for (const { name, colour, dash, points: [at, mean] } of [...lines].reverse()) {
    inside.append(element("path", {
      class: "line", "data-method": name, d: path(zip(at, mean), x, y),
      stroke: `var(--line-${colour})`, "stroke-dasharray": dash.map((length) => 1.8 * length).join(" "),
    }));
  }
  const cursor = element("g", { visibility: "hidden" },
    element("line", { class: "cursor", y1: edge.top, y2: edge.bottom }), element("circle", { r: 4.5 }));
  svg.append(inside, ...referenceMarks(references, y, edge), cursor,
    element("text", { class: "y label", x: 0, y: 12 }, words(now.curve)));
  const readout = html("div", "readout");
  readout.setAttribute("aria-live", "polite");
  readout.hidden = true;
  place.append(svg, readout);
  plot.read = reader({ ...plot, lines, now, x, y, edge, svg, cursor, readout, width });
}

/** Letters of the horizontal lines, at their right ends; the key below the legend has the names. */
function referenceMarks(references, y, edge) {
  let free = edge.bottom + 4;
  return [...references]
    .sort((a, b) => a.value - b.value)
    .map(({ mark, value }) => {
      const at = Math.min(y.to(value) + 4, free);
      free = at - 12;
      return element("text", { class: "mark", x: edge.right + 5, y: at }, mark);
    });
}

/** The value of a line at a place on the axis, or nothing beyond its ends. */
function valueAt([at, ...values], where) {
  if (where < at[0] || where > at[at.length - 1]) return null;
  const i = Math.max(1, at.findIndex((v) => v >= where));
  if (at.length === 1) return values.map((of) => of[0]);
  const share = (where - at[i - 1]) / (at[i] - at[i - 1] || 1);
  return values.map((of) => of[i - 1] + share * (of[i] - of[i - 1]));
}

/** What shows the values under the pointer, or under the cursor that the arrow keys move. */
function reader({ panel, lines, now, x, y, edge, svg, cursor, readout, width }) {
  const better = panel.largest[now.curve] ? (a, b) => b.value[0] - a.value[0] : (a, b) => a.value[0] - b.value[0];
  let place = null; // pixels from the left
  let name = null;

  function found(pixel) {
    return lines
      .map((line) => ({ line, value: valueAt(line.points, x.from(pixel)) }))
      .filter(({ value }) => value && y.has(value[0]))
      .sort(better);
  }

  function show(pixel, choose) {
    place = Math.min(edge.right, Math.max(edge.left, pixel));
    const rows = found(place);
    if (!rows.length) return hide();
    const here = Math.max(0, choose(rows));
    const near = rows[here];
    name = near.line.name;
    focus(svg, name);
    cursor.setAttribute("visibility", "visible");
    const [bar, dot] = cursor.children;
    bar.setAttribute("x1", place);
    bar.setAttribute("x2", place);
    const height = y.to(near.value[0]);
    dot.setAttribute("cx", place);
    dot.setAttribute("cy", height);
    dot.setAttribute("visibility", height >= edge.top ? "inherit" : "hidden");
    dot.setAttribute("fill", `var(--line-${near.line.colour})`);
    const first = Math.max(0, Math.min(here - 2, rows.length - 5));
    const table = html("table");
    rows.slice(first, first + 5).forEach(({ line, value: [mean, low, high] }, i) => {
      const cells = [`${first + i + 1}. ${line.name}`, number(mean)].map((text) => html("td", "", text));
      if (line === near.line && low < high) cells.push(html("td", "", `${number(low)} to ${number(high)}`));
      table.append(html("tr", line === near.line ? "near" : "", ...cells));
    });
    readout.replaceChildren(html("div", "at", `${number(x.from(place), 3, 1)} ${axes[now.axis]}`), table);
    readout.hidden = false;
    readout.style.top = `${edge.bottom + 22}px`; // below the lines, so that it hides none
    const left = place > (edge.left + edge.right) / 2;
    readout.style.left = left ? "" : `${Math.min(place + 14, width - readout.offsetWidth)}px`;
    readout.style.right = left ? `${Math.min(width - place + 14, width - readout.offsetWidth)}px` : "";
  }

  function hide() {
    focus(svg, null);
    cursor.setAttribute("visibility", "hidden");
    readout.hidden = true;
  }

  function point(event) {
    const box = svg.getBoundingClientRect();
    const height = event.clientY - box.top;
    const apart = ({ value }) => Math.abs(y.to(value[0]) - height);
    show(event.clientX - box.left, (rows) => rows.indexOf(rows.reduce((a, b) => (apart(b) < apart(a) ? b : a))));
  }

  svg.addEventListener("pointermove", point);
  svg.addEventListener("pointerdown", point);
  svg.addEventListener("pointerleave", hide);
  svg.addEventListener("blur", hide);
  svg.addEventListener("keydown", (event) => {
    const across = { ArrowLeft: -1, ArrowRight: 1 }[event.key] ?? 0;
    const down = { ArrowUp: -1, ArrowDown: 1 }[event.key] ?? 0;
    if (event.key === "Escape") hide();
    if (!across && !down) return;
    event.preventDefault();
    const start = place ?? (edge.left + edge.right) / 2;
    show(start + (across * (edge.right - edge.left)) / 40, (rows) => {
      const same = rows.findIndex(({ line }) => line.name === name);
      return Math.min(rows.length - 1, Math.max(0, same + down));
    });
  });
}

/** Let one method stand out in a drawing, or none. */
function focus(svg, name) {
  svg.classList.toggle("focused", name !== null);
  for (const part of svg.querySelectorAll("[data-method]")) {
    part.classList.toggle("near", part.dataset.method === name);
  }
}

function drawAll() {
  plots.forEach(draw);
}

controls.addEventListener("change", drawAll);
controls.addEventListener("submit", (event) => event.preventDefault());

function press(button, on) {
  button.setAttribute("aria-pressed", on);
  if (on) hidden.delete(button.dataset.method);
  else hidden.add(button.dataset.method);
}

for (const legend of document.querySelectorAll(".legend")) {
  const methods = [...legend.querySelectorAll(".method")];
  for (const button of methods) {
    const stand = (name) => () => plots.forEach(({ place }) => place.firstChild && focus(place.firstChild, name));
    button.addEventListener("click", () => {
      press(button, button.getAttribute("aria-pressed") === "false");
      drawAll();
    });
    button.addEventListener("pointerenter", stand(button.dataset.method));
    button.addEventListener("pointerleave", stand(null));
  }
  for (const every of legend.querySelectorAll(".every")) {
    every.addEventListener("click", () => {
      methods.forEach((button) => press(button, every.dataset.show === "true"));
      drawAll();
    });
  }
}

/** Sort by a column; again, the other way round. What has no number stays below. */
function sort(table, heading) {
  const column = heading.cellIndex;
  const up = heading.getAttribute("aria-sort") !== "ascending";
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", up ? "ascending" : "descending");
  const key = (row) => row.cells[column].dataset.sort;
  const rows = [...table.tBodies[0].rows];
  rows.sort((a, b) => {
    if (column === 0) return (up ? 1 : -1) * a.cells[0].textContent.localeCompare(b.cells[0].textContent);
    if (key(a) === "" || key(b) === "") return (key(a) === "") - (key(b) === "");
    return (up ? 1 : -1) * (key(a) - key(b));
  });
  table.tBodies[0].append(...rows);
}

for (const table of document.querySelectorAll(".sortable")) {
  for (const heading of table.tHead.rows[0].cells) {
    heading.firstChild.addEventListener("click", () => sort(table, heading));
  }
}

let widths = "";
new ResizeObserver(() => {
  const current = plots.map(({ place }) => place.clientWidth).join();
  if (current !== widths) drawAll();
  widths = current;
}).observe(document.body);
drawAll();
