"use strict";
// What every page of this package draws with: elements, numbers as text, tips, maps, charts, tables.
const charts = (() => {
const $ = (id) => document.getElementById(id);
const KERNELS = {
  features: ["Features", "do representations agree?"],
  gradients: ["Gradients", "do loss gradients agree?"],
  product: ["Product", "do both agree?"],
};
const INDICES = { cka: "CKA", "cka-debiased": "Debiased CKA" };
const VIRIDIS = (
  "440154 48186a 472d7b 424086 3b528b 33638d 2c728e 26828e 21918c 1fa088 28ae80 3fbc73 5ec962 " +
  "84d44b addc30 d8e219 fde725"
).split(" ").map((hex) => [0, 2, 4].map((at) => parseInt(hex.slice(at, at + 2), 16)));
let printing = false; // told before the listeners of pages, which then draw anew
addEventListener("beforeprint", () => { printing = true; });
addEventListener("afterprint", () => { printing = false; });
async function inflated(text) { // base64 of deflated bytes
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate")));
}

// -- elements: every string from the data becomes a text node or an attribute, never markup --------

function put(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes || {})) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (key === "style") node.style.cssText = value; // which a policy against inline styles allows
    else if (value !== null && value !== undefined) node.setAttribute(key, value);
  }
  node.append(...children.filter((child) => child !== null));
  return node;
}
const el = (tag, attributes, ...children) => put(document.createElement(tag), attributes, children);
const svg = (tag, attributes, ...children) =>
  put(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
const known = (x) => x !== null && x !== undefined && !Number.isNaN(x);
const fixed = (x, digits = 3) =>
  known(x) ? x.toFixed(digits).replace(/^-(0\.?0*)$/, "$1").replace("-", "−") : "–";
const pm = (x, error, digits = 3) => fixed(x, digits) + (known(error) ? ` ± ${error > 0 && error < 0.5 / 10 ** digits ? significant(Number(error.toPrecision(1))) : fixed(error, digits)}` : "");
const significant = (x) => (known(x) ? String(Number(x.toPrecision(3))).replace("-", "−") : "–");
const decoded = (code) => // as packed_scores.py has it: thousandths, or how far below 1
  code === -30000 ? NaN : code === 2700 ? 1 : code >= 2000 ? 1 - 5e-4 / 10 ** ((code - 2000) / 100) : code / 1000;
const power = (x) => x.toExponential(0).replace("-", "−");
function likeness(x, error) { // a score, with as many digits as its error warrants; below 1 it is never shown as 1
  if (!known(x)) return "–";
  const below = 1 - x, e = known(error) && error > 0 ? error : 0;
  if (Math.abs(below) <= 1e-9 && e <= 1e-7) return "1";
  const enough = Math.max(e ? Math.max(2, 1 - Math.floor(Math.log10(e))) : 3, below > 1e-9 ? Math.ceil(-Math.log10(below)) : 0);
  const digits = Math.min(enough, 6), text = fixed(x, digits);
  const value = below > 1e-9 && Number(text) === 1 ? `1 − ${power(below)}` : text;
  return e ? `${value} ± ${Number(e.toFixed(digits)) ? e.toFixed(digits) : power(e)}` : value;
}
const inCell = (x) => (1 - x > 1e-9 && x >= 0.995 ? ">.99" : Math.abs(1 - x) <= 1e-9 ? "1" : fixed(x, 2));
const POWERS = "⁰¹²³⁴⁵⁶⁷⁸⁹";
function measured(x, error) { // as many digits as the error warrants
  if (!known(x)) return "–";
  const power = x ? Math.floor(Math.log10(Math.abs(x))) : 0;
  const small = power < -2 || power > 4, scale = small ? 10 ** power : 1;
  const e = known(error) && error > 0 ? error / scale : NaN, lead = Math.floor(Math.log10(e));
  const digits = known(e) ? Math.max(0, Math.min(4, (e / 10 ** lead < 3 ? 1 : 0) - lead)) : small ? 2 : Math.max(0, 3 - Math.max(power, 0));
  const text = pm(x / scale, known(error) ? error / scale : NaN, digits);
  if (!small) return text;
  const raised = [...String(Math.abs(power))].map((c) => POWERS[c]).join("");
  return `(${text}) × 10${power < 0 ? "⁻" : ""}${raised}`;
}
const mean = (list) => {
  const some = list.filter(known);
  return some.length ? some.reduce((sum, x) => sum + x, 0) / some.length : NaN;
};
// the end of a layer's name tells it apart, so more of it is kept
const shorten = (name, limit) => {
  const head = Math.floor(limit * 0.3);
  return name.length <= limit ? name : `${name.slice(0, head)}…${name.slice(1 + head - limit)}`;
};
function brief(names) { // without the dotted prefix that all of them share
  const first = names[0].split("."), parts = names.map((name) => name.split("."));
  let shared = 0;
  while (names.length > 1 && parts.every((p) => p.length > shared + 1 && p[shared] === first[shared])) shared++;
  return parts.map((p) => p.slice(shared).join("."));
}

const coloured = (name, side) => el("span", { class: side }, name);
const plural = (n, what) => `${n} ${what}${n === 1 ? "" : "s"}`;
const listed = (items) => (items.length > 1 ? `${items.slice(0, -1).join(", ")} and ${items[items.length - 1]}` : items[0]);

// -- a tip beside what is pointed at or focused ----------------------------------------------------

function showTip(target, lines) {
  const tip = $("tip");
  tip.replaceChildren(...lines);
  tip.hidden = false;
  const box = target.getBoundingClientRect(), size = tip.getBoundingClientRect();
  const left = Math.min(Math.max(box.left + box.width / 2 - size.width / 2, 8), document.documentElement.clientWidth - size.width - 8);
  const above = box.top - size.height - 10;
  tip.style.left = `${left + scrollX}px`;
  tip.style.top = `${(above > 4 ? above : box.bottom + 10) + scrollY}px`;
}
const hideTip = () => { $("tip").hidden = true; };
addEventListener("keydown", (event) => { if (event.key === "Escape") hideTip(); });

function scoreTip(heading, score, error, chance, high) {
  return [
    el("span", {}, heading),
    el("b", {}, likeness(score, error)),
    el("small", {}, known(high)
      ? `chance ${fixed(chance)}, 95 % level ${fixed(high)}${score <= high ? ": not above chance" : ""}`
      : "no chance level known"),
  ];
}

// -- maps ------------------------------------------------------------------------------------------

function colour(value) {
  const x = Math.min(Math.max(value, 0), 1) * (VIRIDIS.length - 1);
  const k = Math.min(Math.floor(x), VIRIDIS.length - 2);
  return VIRIDIS[k].map((c, i) => Math.round(c + (x - k) * (VIRIDIS[k + 1][i] - c)));
}
function luminance(...rgb) { // black text reads better than white above 0.18
  const [r, g, b] = rgb.map((c) => (c > 10 ? ((c / 255 + 0.055) / 1.055) ** 2.4 : c / 3295));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}
const SHIFT = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

// cell(i, j) gives {value, weak, label, tip}; choose(i, j) makes cells choosable
function heat(host, { rows, columns, cell, label, choose, picked, room, corner }) {
  const old = host.contains(document.activeElement) ? document.activeElement.dataset : null;
  const start = old && old.i < rows.length && old.j < columns.length ? [+old.i, +old.j] : picked || [0, 0];
  const cells = rows.map(() => []);
  const names = { row: [], column: [] };
  const short = { row: brief(rows), column: brief(columns) };
  const nameOf = (name, side) => {
    const node = el("div", { role: `${side}header`, class: `name ${side}`, title: name });
    names[side].push([node, short[side][names[side].length]]);
    return node;
  };
  const move = (i, j) => {
    host.querySelector("[tabindex='0']").tabIndex = -1;
    cells[i][j].tabIndex = 0;
    cells[i][j].focus();
  };
  const point = (i, j, on) => {
    names.row[i][0].classList.toggle("here", on);
    names.column[j][0].classList.toggle("here", on);
    if (on) showTip(cells[i][j], cell(i, j).tip);
    else hideTip();
  };
  const grid = el("div", { role: "grid", "aria-label": label, class: choose ? "choosable" : "" },
    el("div", { role: "row", class: "line" }, el("div", { role: "columnheader" }, el("span", { class: "unseen" }, corner || "Layer")), ...columns.map((name) => nameOf(name, "column"))));
  rows.forEach((name, i) => {
    const line = el("div", { role: "row", class: "line" }, nameOf(name, "row"));
    columns.forEach((_, j) => {
      const { value, weak, label: words, text: shown } = cell(i, j);
      const node = el("div", { role: "gridcell", class: "cell", "data-i": i, "data-j": j, tabindex: i === start[0] && j === start[1] ? 0 : -1, "aria-label": known(value) ? `${shown || inCell(value)}, ${words}` : words },
        el("span", {}, known(value) ? shown || inCell(value) : ""));
      if (known(value)) {
        const [r, g, b] = colour(value);
        node.style.backgroundColor = `rgb(${r} ${g} ${b})`;
        node.classList.toggle("light", luminance(r, g, b) > 0.18);
        node.classList.toggle("weak", Boolean(weak));
      } else node.classList.add("void");
      if (picked) {
        const here = picked[0] === i && picked[1] === j;
        node.classList.toggle("picked", here);
        node.setAttribute("aria-selected", here);
      }
      cells[i].push(node);
      line.append(node);
    });
    grid.append(line);
  });
  if (picked) {
    names.row[picked[0]][0].classList.add("picked-row");
    names.column[picked[1]][0].classList.add("picked-column");
  }
  const where = (event) => {
    const node = event.target.closest(".cell");
    return node ? [+node.dataset.i, +node.dataset.j] : null;
  };
  const on = (type, act) => grid.addEventListener(type, (event) => { const w = where(event); if (w) act(...w, event); });
  on("mouseover", (i, j) => point(i, j, true));
  on("mouseout", (i, j) => point(i, j, false));
  on("focusin", (i, j) => point(i, j, true));
  on("focusout", (i, j) => point(i, j, false));
  on("click", (i, j) => { move(i, j); if (choose) choose(i, j); });
  on("keydown", (i, j, event) => {
    const last = [rows.length - 1, columns.length - 1];
    let to = null;
    if (SHIFT[event.key]) to = [i + SHIFT[event.key][0], j + SHIFT[event.key][1]];
    else if (event.key === "Home") to = [event.ctrlKey ? 0 : i, 0];
    else if (event.key === "End") to = [event.ctrlKey ? last[0] : i, last[1]];
    else if (choose && (event.key === "Enter" || event.key === " ")) { event.preventDefault(); choose(i, j); return; }
    if (!to) return;
    event.preventDefault();
    move(Math.min(Math.max(to[0], 0), last[0]), Math.min(Math.max(to[1], 0), last[1]));
  });
  host.classList.add("heat");
  host.replaceChildren(grid);
  host.fit = () => {
    const width = room();
    const longest = Math.max(...short.row.map((name) => name.length), 3);
    const side = Math.min(longest * 6.7 + 14, Math.max(76, width * 0.3), 210);
    const cellSize = Math.max(10, Math.floor(Math.min(printing ? 46 : 64, (width - side - 8) / columns.length)));
    const across = Math.max(...short.column.map((name) => name.length)) * 6.7 + 3 <= cellSize;
    grid.classList.toggle("upright", !across);
    const tall = Math.max(10, Math.min(cellSize, Math.max(20, Math.floor(620 / rows.length)))); // of many rows, flat ones
    grid.classList.toggle("tiny", cellSize < 27);
    for (const [key, value] of [["label", `${side}px`], ["n", columns.length], ["cell", `${cellSize}px`], ["tall", `${tall}px`]])
      grid.style.setProperty(`--${key}`, value);
    for (const [node, name] of names.row) node.textContent = shorten(name, Math.floor((side - 10) / 6.5));
    for (const [node, name] of names.column) node.textContent = shorten(name, 20);
    return tall;
  };
  const tall = host.fit();
  if (old) cells[start[0]][start[1]].focus();
  return tall;
}

const TREE = 68;
function tree(host, { order, links }, size) {
  const n = order.length, wide = TREE - 8, deepest = Math.max(...links.map((link) => link[2]), 1e-6);
  const place = Object.fromEntries(order.map((leaf, position) => [leaf, [0, (position + 0.5) * size]]));
  const paths = links.map(([left, right, height], i) => {
    const [x0, y0] = place[left], [x1, y1] = place[right], x = 2 + (height / deepest) * (wide - 6);
    place[n + i] = [x, (y0 + y1) / 2];
    return svg("path", { d: `M${x0} ${y0}H${x}V${y1}H${x1}` });
  });
  const box = { width: wide, height: n * size, viewBox: `0 0 ${wide} ${n * size}` };
  host.replaceChildren(...(links.length > 1 ? [svg("svg", box, ...paths)] : []));
}

// -- charts ----------------------------------------------------------------------------------------

function ticksOf(low, high) {
  const raw = (high - low || 1) / 4, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= raw * 0.999);
  const out = [];
  for (let t = Math.ceil(low / step - 1e-9) * step; t <= high + step * 1e-6; t += step) out.push(t);
  return out;
}
// series: {y, error, kind, tips, band, hollow, mark}; names of kinds are classes
function chart(host, { series, names: full, low, high, label, tall = 340 }) {
  const names = brief(full);
  host.draw = () => {
    const W = Math.max(printing ? 640 : host.clientWidth || 600, 260), H = printing ? 270 : tall;
    const n = names.length, longest = Math.min(Math.max(...names.map((name) => name.length)), 18);
    const L = Math.max(42, Math.min(names[0].length, 18) * 4.4), R = 14, T = 22, B = 18 + longest * 4.6;
    const x = (i) => L + (n > 1 ? (i / (n - 1)) * (W - L - R - 12) : (W - L - R) / 2) + 6;
    const y = (v) => T + (1 - (v - low) / (high - low)) * (H - T - B);
    const out = [], beside = (s) => (series.length > 1 && n * 22 < W ? (series.indexOf(s) - (series.length - 1) / 2) * 7 * (s.kind in KERNELS) : 0);
    for (const s of series) {
      if (!s.band) continue;
      const edge = s.band.map((v, i) => (known(v) ? [x(i), y(Math.max(v, low))] : null)).filter(Boolean);
      if (!edge.length) continue;
      if (edge.length === 1) edge.push([edge[0][0] + 14, edge[0][1]]);
      const line = edge.map((p) => p.join(",")).join(" ");
      out.push(svg("polygon", { class: `band s-${s.kind}`, points: `${line} ${edge[edge.length - 1][0]},${y(low)} ${edge[0][0]},${y(low)}` }));
      out.push(svg("polyline", { class: `edge s-${s.kind}`, points: line }));
    }
    for (const t of ticksOf(low, high)) {
      out.push(svg("line", { class: "grid", x1: L, x2: W - R, y1: y(t), y2: y(t) }));
      out.push(svg("text", { x: L - 8, y: y(t) + 4, "text-anchor": "end" }, significant(t)));
    }
    const every = Math.ceil(n / Math.max(1, (W - L - R) / 16));
    names.forEach((name, i) => {
      if (i % every) return;
      const spot = `translate(${x(i) + 4} ${H - B + 16}) rotate(-45)`;
      out.push(svg("text", { transform: spot, "text-anchor": "end" }, shorten(name, 18)));
    });
    for (const s of series) {
      const right = beside(s);
      let pen = "M";
      const path = s.y.map((v, i) => {
        const step = known(v) ? `${pen}${x(i) + right} ${y(v)}` : "";
        pen = known(v) ? "L" : "M";
        return step;
      });
      out.push(svg("path", { class: `line s-${s.kind}`, d: path.join("") || "M0 0" }));
      s.y.forEach((v, i) => {
        if (!known(v)) return;
        const cx = x(i) + right, cy = y(v), kind = `s-${s.kind}${s.hollow && s.hollow[i] ? " hollow" : ""}`;
        if (known(s.error[i]) && s.kind !== "other") {
          const reach = [v - 2 * s.error[i], v + 2 * s.error[i]].map((e) => y(Math.min(Math.max(e, low), high)));
          out.push(svg("line", { class: `bar ${kind}`, x1: cx, x2: cx, y1: reach[0], y2: reach[1] }));
        }
        if (s.mark === i) {
          out.push(svg("line", { class: `mark s-${s.kind}`, x1: cx, x2: cx, y1: T - 6, y2: H - B }));
          out.push(svg("text", { class: `mark s-${s.kind}`, x: Math.min(Math.max(cx, L + 44), W - R - 44), y: T - 10, "text-anchor": "middle" }, `${KERNELS[s.kind][0]} diverge`));
          out.push(svg("circle", { class: `ring s-${s.kind}`, cx, cy, r: 9 }));
        }
        const dot = s.kind === "gradients"
          ? svg("rect", { class: `dot ${kind}`, x: cx - 4.2, y: cy - 4.2, width: 8.4, height: 8.4 })
          : svg("circle", { class: `dot ${kind}`, cx, cy, r: s.kind === "other" ? 2.5 : 4.5 });
        out.push(dot, svg("circle", { cx, cy, r: 11, fill: "transparent", onmouseenter: () => showTip(dot, s.tips(i)), onmouseleave: hideTip }));
      });
    }
    host.replaceChildren(svg("svg", { viewBox: `0 0 ${W} ${H}`, width: W, height: H, role: "img", "aria-label": label }, ...out));
  };
  host.draw();
}

function table(target, head, rows, firstNumber) {
  const side = (k) => (k >= firstNumber[0] && !firstNumber[1]?.includes(k) ? "number" : null);
  target.replaceChildren(
    el("thead", {}, el("tr", {}, ...head.map((text, k) => el("th", { scope: "col", class: side(k) }, text)))),
    el("tbody", {}, ...rows.map((row) => el("tr", {}, ...row.map((content, k) =>
      el(k ? "td" : "th", { scope: k ? null : "row", class: side(k) }, content))))),
  );
}


// -- hosts of maps, made once, so that focus stays -------------------------------------------------

const panes = new Map();
function pane(section, kernel) { // a figure with a caption and a host for a map
  const key = `${section}-${kernel}`;
  if (!panes.has(key)) {
    const host = el("div", { id: key }), side = el("div", { class: "tree", "aria-hidden": "true" });
    const [what, question] = KERNELS[kernel] || ["Predictions", "% of samples with a different predicted class"];
    const figure = el("figure", {}, el("figcaption", {}, el("i", { class: `swatch s-${kernel}` }), el("b", {}, what), ` ${question}`), el("div", { class: "with-tree" }, host, side));
    panes.set(key, { figure, host, side });
    $(section).insertBefore(figure, $(section).querySelector(":scope > aside"));
  }
  return panes.get(key);
}
function placePanes(section, kernels) {
  for (const kernel of kernels) pane(section, kernel);
  for (const [key, { figure }] of panes) if (key.startsWith(`${section}-`)) figure.hidden = !kernels.includes(key.slice(section.length + 1));
  $(section).classList.toggle("alone", kernels.length === 1 && section !== "overview");
}
const roomIn = (host, spare = 0) => () => (printing ? 330 : Math.min(host.closest("figure").clientWidth, 620)) - spare;

// -- controls --------------------------------------------------------------------------------------

function radios(host, name, options, { choose, title }) {
  for (const [value, text] of options) {
    const input = el("input", { type: "radio", name, value, onchange: () => choose(value) });
    host.append(el("label", { class: "choice", title: title ? title(value) : null }, input, el("span", {}, text)));
  }
}
function check(name, value) {
  document.querySelectorAll(`input[name=${name}]`).forEach((input) => { input.checked = input.value === value; });
}
function setTheme(dark) {
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  $("theme").textContent = dark ? "Light" : "Dark";
  $("theme").setAttribute("aria-label", `Switch to ${dark ? "light" : "dark"} colours`);
}
function followTheme() { // the system's, until a reader switches
  const night = matchMedia("(prefers-color-scheme: dark)");
  const follow = () => setTheme(night.matches);
  follow();
  night.addEventListener("change", follow);
  $("theme").addEventListener("click", () => { night.removeEventListener("change", follow); setTheme(document.documentElement.dataset.theme !== "dark"); });
}
const ramp = (first, last) => el("span", {}, first, el("i", { class: "ramp" }), last);
function legends(root = document) {
  for (const legend of root.querySelectorAll(".legend"))
    legend.replaceChildren(ramp("0", "1"), legend.closest("#layers, #course") ? el("span", { class: "of-chance" }, el("i", { class: "hatch" }), "not above chance") : "");
}

return {
  $, KERNELS, INDICES, TREE, inflated, el, svg, known, fixed, decoded, likeness, inCell, significant, measured, mean, shorten, brief, coloured, plural, listed,
  showTip, hideTip, scoreTip, colour, heat, tree, ticksOf, chart, table, panes, pane, placePanes, roomIn, radios, check, followTheme, legends, ramp,
};
})();
