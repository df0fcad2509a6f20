"use strict";
(() => {
const $ = (id) => document.getElementById(id);
const D = JSON.parse($("data").textContent);
const KERNELS = {
  features: ["Features", "same eyes?"],
  gradients: ["Gradients", "same aims?"],
  product: ["Product", "both at once?"],
};
const INDICES = { cka: "CKA", "cka-debiased": "Debiased CKA" };
const MEASURES = { log_ratio: "Log ratio", mean_embedding: "Norm ‖μ‖" };
const PARTS = ["scores", "stderr", "chance", "chance_high"];
const VIRIDIS = (
  "440154 48186a 472d7b 424086 3b528b 33638d 2c728e 26828e 21918c 1fa088 28ae80 3fbc73 5ec962 " +
  "84d44b addc30 d8e219 fde725"
).split(" ").map((hex) => [0, 2, 4].map((at) => parseInt(hex.slice(at, at + 2), 16)));
const one = D.models.length === 1;
const state = { kernel: D.kernels[D.kernels.length - 1], index: D.indices[0], measure: "log_ratio" };
const starts = D.comparisons.filter((c) => c.kernel === state.kernel && c.index === state.index && (one || c.a !== c.b));
const start = starts.find((c) => c.paired) || starts[0];
Object.assign(state, { a: start.a, b: start.b });
let printing = false;

// -- elements: every string from the data becomes a text node or an attribute, never markup --------

function put(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes || {})) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
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
const pm = (x, error, digits = 3) => fixed(x, digits) + (known(error) ? ` ± ${fixed(error, digits)}` : "");
const significant = (x) => (known(x) ? String(Number(x.toPrecision(3))).replace("-", "−") : "–");
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

// -- numbers ---------------------------------------------------------------------------------------

const bytes = new DataView(Uint8Array.from(atob(D.numbers), (c) => c.charCodeAt(0)).buffer);
const keyOf = (...parts) => JSON.stringify(parts);
const entries = new Map(D.comparisons.map((c) => [keyOf(c.a, c.b, c.kernel, c.index), c]));
const reasons = new Map(D.missing.map((c) => [keyOf(c.a, c.b, c.kernel, c.index), c.why]));
const cache = new Map();

function view(a, b, kernel, index) {
  const entry = entries.get(keyOf(Math.min(a, b), Math.max(a, b), kernel, index));
  if (!entry) return null;
  const key = keyOf(a, b, kernel, index);
  if (!cache.has(key)) cache.set(key, decode(entry, a, b));
  return cache.get(key);
}
function decode(entry, a, b) {
  const flip = a > b;
  const rows = D.models[a].layers, columns = D.models[b].layers;
  const out = { ...entry, a, b, rows, columns, samples: flip ? [...entry.samples].reverse() : entry.samples };
  PARTS.forEach((part, k) => {
    out[part] = null;
    if (!entry.ranges[k]) return;
    const [low, step] = entry.ranges[k];
    const start = entry.at + k * rows.length * columns.length;
    out[part] = rows.map((_, i) => columns.map((_, j) => {
      const at = flip ? j * rows.length + i : i * columns.length + j;
      const value = bytes.getUint16(2 * (start + at), true);
      return value === 65535 ? NaN : low + step * value;
    }));
  });
  const last = rows.length - 1;
  if (a === b && last > 0) {
    out.which = "neighbouring";
    out.pairs = rows.slice(0, last).map((_, i) => [i, i + 1]);
  } else {
    out.which = "matched";
    out.pairs = entry.matched[flip ? 1 : 0].flatMap((j, i) => (j === null ? [] : [[i, j]]));
  }
  out.matched = entry.matched[flip ? 1 : 0];
  // by similarity, a layer that was not chosen is no layer without a counterpart
  out.alone = entry.matched_by === "similarity" ? [[], []] : [rows, columns].map((names, side) => names.filter((_, i) => entry.matched[side ^ flip][i] === null));
  return out;
}
const at = (matrix, [i, j]) => (matrix ? matrix[i][j] : NaN);
const along = (v, part) => v.pairs.map((pair) => at(v[part], pair));
const isWeak = (v, pair) => v.chance_high !== null && at(v.scores, pair) <= at(v.chance_high, pair);
function plain(v) { // what Comparison.load reads
  const clean = (x) => Array.isArray(x) ? x.map(clean) : Number.isNaN(x) ? null : typeof x === "number" ? Number(x.toFixed(6)) : x;
  return {
    comparison: 1, models: [D.models[v.a].name, D.models[v.b].name], rows: v.rows, columns: v.columns,
    ...Object.fromEntries(PARTS.map((part) => [part, clean(v[part])])), kernel: v.kernel, index: v.index,
    centre: v.centre, estimator: v.estimator, paired: v.paired, samples: v.samples, tokens: v.tokens, notes: v.notes,
    matched_by: v.matched_by, matched: v.matched,
  };
}

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
    el("b", {}, pm(score, error)),
    el("small", {}, known(chance)
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
function heat(host, { rows, columns, cell, label, choose, picked, room }) {
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
    el("div", { role: "row", class: "line" }, el("div", { role: "columnheader", "aria-label": "layer" }), ...columns.map((name) => nameOf(name, "column"))));
  rows.forEach((name, i) => {
    const line = el("div", { role: "row", class: "line" }, nameOf(name, "row"));
    columns.forEach((_, j) => {
      const { value, weak, label: words } = cell(i, j);
      const node = el("div", { role: "gridcell", class: "cell", "data-i": i, "data-j": j, tabindex: i === start[0] && j === start[1] ? 0 : -1, "aria-label": words },
        el("span", {}, known(value) ? fixed(value, 2) : ""));
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
    const across = Math.max(...short.column.map((name) => name.length)) * 6.7 <= cellSize;
    grid.classList.toggle("upright", !across);
    grid.classList.toggle("tiny", cellSize < 27);
    for (const [key, value] of [["label", `${side}px`], ["n", columns.length], ["cell", `${cellSize}px`]])
      grid.style.setProperty(`--${key}`, value);
    for (const [node, name] of names.row) node.textContent = shorten(name, Math.floor((side - 10) / 6.5));
    for (const [node, name] of names.column) node.textContent = shorten(name, 20);
    return cellSize;
  };
  const cellSize = host.fit();
  if (old) cells[start[0]][start[1]].focus();
  return cellSize;
}

function tree(host, { order, links }, size) {
  const n = order.length, room = printing ? 84 : $("models").querySelector(".box").clientWidth - $("overview").clientWidth - 16;
  const wide = Math.max(56, Math.min(200, room)), deepest = Math.max(...links.map((link) => link[2]), 1e-6);
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
// series: {y, error, kind: first|second|other, tips}; band: {low, high}
function chart(host, { series, names: full, low, high, label, band }) {
  const names = brief(full);
  host.draw = () => {
    const W = Math.max(printing ? 640 : host.clientWidth || 600, 260), H = printing ? 270 : 340;
    const n = names.length, longest = Math.min(Math.max(...names.map((name) => name.length)), 18);
    const L = Math.max(42, Math.min(names[0].length, 18) * 4.4), R = 14, T = 10, B = 18 + longest * 4.6;
    const x = (i) => L + (n > 1 ? (i / (n - 1)) * (W - L - R - 12) : (W - L - R) / 2) + 6;
    const y = (v) => T + (1 - (v - low) / (high - low)) * (H - T - B);
    const out = [];
    const ticks = ticksOf(low, high);
    for (const t of ticks) {
      out.push(svg("line", { class: "grid", x1: L, x2: W - R, y1: y(t), y2: y(t) }));
      out.push(svg("text", { x: L - 8, y: y(t) + 4, "text-anchor": "end" }, significant(t)));
    }
    const every = Math.ceil(n / Math.max(1, (W - L - R) / 16));
    names.forEach((name, i) => {
      if (i % every) return;
      const spot = `translate(${x(i) + 4} ${H - B + 16}) rotate(-45)`;
      out.push(svg("text", { transform: spot, "text-anchor": "end" }, shorten(name, 18)));
    });
    if (band) {
      const edge = (list) => list.map((v, i) => (known(v) ? `${x(i)},${y(Math.max(v, low))}` : "")).filter(Boolean);
      const wide = n > 1 ? [] : [`${x(0) + 14},${y(band.high[0])}`, `${x(0) + 14},${y(band.low[0])}`];
      out.push(svg("polygon", { class: "band", points: [...edge(band.high), ...wide, ...edge(band.low).reverse()].join(" ") }));
    }
    for (const s of series) {
      let pen = "M";
      const path = s.y.map((v, i) => {
        const step = known(v) ? `${pen}${x(i)} ${y(v)}` : "";
        pen = known(v) ? "L" : "M";
        return step;
      });
      out.push(svg("path", { class: `line s-${s.kind}`, d: path.join("") || "M0 0" }));
      s.y.forEach((v, i) => {
        if (!known(v)) return;
        if (known(s.error[i]) && s.kind !== "other") {
          const reach = [v - 2 * s.error[i], v + 2 * s.error[i]].map((e) => y(Math.min(Math.max(e, low), high)));
          out.push(svg("line", { class: `bar s-${s.kind}`, x1: x(i), x2: x(i), y1: reach[0], y2: reach[1] }));
        }
        const dot = svg("circle", { class: `dot s-${s.kind}`, cx: x(i), cy: y(v), r: s.kind === "other" ? 2.5 : 4.5 });
        const hit = svg("circle", { cx: x(i), cy: y(v), r: 12, fill: "transparent", onmouseenter: () => showTip(dot, s.tips(i)), onmouseleave: hideTip });
        out.push(dot, hit);
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

// -- sections --------------------------------------------------------------------------------------

const nameA = () => D.models[state.a].name;
const nameB = () => D.models[state.b].name;
const coloured = (name, side) => el("span", { class: side }, name);
const indexWords = () => INDICES[state.index];
const kernelWords = (v) => `${v && v.centre ? "centred " : ""}${state.kernel}`;

function drawOverview() {
  const found = D.overview.find((o) => o.kernel === state.kernel && o.index === state.index);
  $("overview").parentElement.parentElement.hidden = one;
  if (one) { $("models-title").textContent = "The network"; $("models-gloss").textContent = "How much each layer keeps of the one before it."; return; }
  const order = found ? found.order : D.models.map((_, i) => i);
  const names = order.map((i) => D.models[i].name);
  const value = (i, j) => (found ? found.scores[order[i]][order[j]] : null);
  $("models-gloss").textContent =
    `${indexWords()} of ${state.kernel}, mean over counterpart layers. Like stands beside like; the tree joins the nearest first. Choose a cell to see that pair.`;
  const reasonOf = (i, j) => reasons.get(keyOf(Math.min(order[i], order[j]), Math.max(order[i], order[j]), state.kernel, state.index));
  const size = heat($("overview"), {
    rows: names, columns: names,
    label: `Similarity of networks, ${indexWords()} of ${state.kernel}`,
    room: () => (printing ? 430 : $("models").querySelector(".box").clientWidth) - (names.length > 2 ? 76 : 4),
    picked: [order.indexOf(state.a), order.indexOf(state.b)],
    choose: (i, j) => { state.a = order[i]; state.b = order[j]; update(); },
    cell: (i, j) => {
      const error = found ? found.stderr[order[i]][order[j]] : null;
      const words = known(value(i, j)) ? fixed(value(i, j)) : reasonOf(i, j) || "undefined";
      return {
        value: value(i, j),
        label: `${names[i]} and ${names[j]}: ${words}`,
        tip: [
          el("span", {}, `${names[i]} × ${names[j]}`), el("b", {}, known(value(i, j)) ? fixed(value(i, j)) : "–"),
          el("small", {}, known(value(i, j)) ? (known(error) ? `mean over layers, standard error ${fixed(error)}` : "mean over layers") : words),
        ],
      };
    },
  });
  if (found) tree($("tree"), found, size);
  else $("tree").replaceChildren();
  const pairs = [];
  names.forEach((_, i) => names.forEach((_, j) => { if (i < j && known(value(i, j))) pairs.push([value(i, j), names[i], names[j]]); }));
  pairs.sort((p, q) => q[0] - p[0]);
  const say = ([v, p, q]) => `${p} and ${q} (${fixed(v, 2)})`;
  $("findings").textContent = pairs.length > 1 ? `Most alike: ${say(pairs[0])}. Least alike: ${say(pairs[pairs.length - 1])}.` : "";
}

function drawCard(v) {
  const self = state.a === state.b;
  $("card-title").replaceChildren(...(self ? [coloured(nameA(), "first"), " with itself"] : [coloured(nameA(), "first"), " and ", coloured(nameB(), "second")]));
  $("card-which").textContent = !v ? "layers and their counterparts" : v.which === "matched" ? `layers matched by ${v.matched_by}` : `${v.which} layers`;
  $("tiles").replaceChildren(...D.kernels.map((kernel) => {
    const here = view(state.a, state.b, kernel, state.index);
    const score = here ? (here.which === "neighbouring" ? mean(along(here, "scores")) : here.mean[0]) : NaN, high = here ? mean(along(here, "chance_high")) : NaN;
    const percent = (x) => `${100 * Math.min(Math.max(x, 0), 1)}%`;
    return el("div", { class: `tile${kernel === state.kernel ? " on" : ""}` },
      el("span", { class: "what" }, KERNELS[kernel][0], el("small", {}, KERNELS[kernel][1])),
      el("span", { class: "much" }, fixed(score, 2)),
      el("span", { class: "rule" }, known(score) ? el("i", { style: `width:${percent(score)}` }) : null,
        known(high) ? el("b", { style: `left:${percent(high)}`, title: `95 % level of chance ${fixed(high, 2)}` }) : null));
  }));
  $("card-words").textContent = v ? words(v) : "";
}
function words(v) {
  const value = along(v, "scores"), error = along(v, "stderr");
  const order = value.map((_, i) => i).filter((i) => known(value[i])).sort((i, j) => value[i] - value[j]);
  if (!order.length) return "No layer has a defined score.";
  const low = order[0], high = order[order.length - 1];
  const where = (i) => `${v.rows[v.pairs[i][0]]}${v.which === "neighbouring" ? " → " + v.columns[v.pairs[i][1]] : ""} (${measured(value[i], error[i])})`;
  const above = v.pairs.filter((pair) => !isWeak(v, pair) && known(at(v.scores, pair))).length;
  const most = low === high ? `At ${where(low)}.` : `Most alike at ${where(high)}, least at ${where(low)}.`;
  const all = v.which === "neighbouring" || !known(v.mean[0]) ? "" : `Mean over layers ${measured(...v.mean)}. `;
  return `${all}${most}${v.chance ? ` Above chance: ${above} of ${value.length}.` : ""}`;
}

function drawPair(v) {
  const self = state.a === state.b;
  $("status").textContent = "";
  $("pair-body").hidden = !v;
  $("layers-title").replaceChildren("Layer by layer: ", coloured(nameA(), "first"), ...(self ? [" with itself"] : [" and ", coloured(nameB(), "second")]));
  if (!v) {
    const why = reasons.get(keyOf(Math.min(state.a, state.b), Math.max(state.a, state.b), state.kernel, state.index));
    $("heading").textContent = `Not available: ${why || "this was not compared"}.`;
    return;
  }
  $("pair-body").classList.toggle("no-chance", !v.chance);
  const count = v.samples.map((n) => n.toLocaleString("en"));
  const unit = v.tokens ? "tokens" : "samples";
  const source = { blocks: `from exact kernels of ${count[0]} ${self ? "" : "shared "}${unit}`, ratio: `from exact kernels of parts of ${count[0]} ${self ? "" : "shared "}${unit} and the norms of all`, buckets: `from sketches of ${v.paired ? count[0] + " shared" : count.join(" and ")} ${unit}` };
  $("heading").textContent = `${indexWords()} of ${kernelWords(v)}, ${source[v.estimator] || v.estimator}${v.paired ? "" : ", which are not paired"}.`;
  $("map-title").replaceChildren("Rows ", coloured(nameA(), "first"), self ? ", columns the same network" : ", columns ", self ? "" : coloured(nameB(), "second"));
  const here = (i, j) => PARTS.map((part) => at(v[part], [i, j]));
  heat($("map"), {
    rows: v.rows, columns: v.columns, label: `Layers of ${nameA()} by layers of ${nameB()}`,
    room: () => (printing ? 640 : $("map").parentElement.clientWidth),
    cell: (i, j) => {
      const [score, error, chance, high] = here(i, j);
      return {
        value: score, weak: isWeak(v, [i, j]),
        label: `${v.rows[i]} of ${nameA()}, ${v.columns[j]} of ${nameB()}: ${known(score) ? pm(score, error) : "undefined"}${known(chance) ? `, chance ${fixed(chance)}, 95 % level ${fixed(high)}` : ""}`,
        tip: scoreTip(`${v.rows[i]} × ${v.columns[j]}`, score, error, chance, high),
      };
    },
  });
  const value = along(v, "scores"), low = v.chance ? along(v, "chance") : null, high = v.chance ? along(v, "chance_high") : null;
  const title = v.which === "neighbouring" ? "Each layer with the next" : `Each layer with its counterpart, matched by ${v.matched_by}`;
  $("curve-title").textContent = title;
  const floor = Math.min(0, ...value.filter(known), ...(low || []).filter(known));
  chart($("curve"), {
    names: v.pairs.map(([i]) => v.rows[i]), low: floor < -0.02 ? floor : 0, high: 1, label: `${title}. ${words(v)}`,
    band: v.chance ? { low, high } : null,
    series: [{
      y: value, error: along(v, "stderr"), kind: "first",
      tips: (k) => scoreTip(`${v.rows[v.pairs[k][0]]} × ${v.columns[v.pairs[k][1]]}`, ...here(...v.pairs[k])),
    }],
  });
  const alone = v.alone.flatMap((names, side) => (names.length ? [el("li", {}, `Without a counterpart, of ${side ? nameB() : nameA()}: ${names.join(", ")}.`)] : []));
  $("notes").replaceChildren(...alone, ...(v.carried ? [el("li", {}, `${v.carried}.`)] : []), ...v.notes.map((note) => el("li", {}, `Note: ${note}.`)));
  const heads = [`Layer of ${nameA()}`, v.which === "neighbouring" ? "Next layer" : `Counterpart, by ${v.matched_by}`, "Score ± error", "Chance, 95 %", self ? "Nearest other layer" : `Nearest layer of ${nameB()}`, "Its score ± error"];
  table($("matches"), heads, v.rows.map((name, i) => {
    const pair = v.pairs.find(([row]) => row === i);
    const others = v.columns.map((_, j) => j).filter((j) => !(self && j === i && v.columns.length > 1) && known(v.scores[i][j]));
    const best = others.sort((p, q) => v.scores[i][q] - v.scores[i][p])[0];
    const same = best !== undefined && pair && best === pair[1];
    return [
      name, pair ? v.columns[pair[1]] : "–", pair ? pm(at(v.scores, pair), at(v.stderr, pair)) : "–", pair ? fixed(at(v.chance_high, pair)) : "–",
      best === undefined ? "–" : el("span", { class: same ? "quiet" : null }, v.columns[best]),
      best === undefined ? "–" : pm(v.scores[i][best], v.stderr[i][best]),
    ];
  }), [2, [4]]);
  drawValues();
}
function drawValues() {
  const v = view(state.a, state.b, state.kernel, state.index);
  if (!v || !$("values-box").open) return;
  table($("values"), [`Layer of ${nameA()}`, `Layer of ${nameB()}`, "Score", "Standard error", "Chance, mean", "Chance, 95 %"],
    v.rows.flatMap((row, i) => v.columns.map((column, j) => [row, column, ...PARTS.map((part) => fixed(at(v[part], [i, j]), 4))])), [2]);
}

function drawAdaptation() {
  const shown = D.adaptation.map((columns, m) => ({ m, columns })).filter(({ columns }) => columns);
  $("adaptation").hidden = !shown.length;
  if (!shown.length) return;
  const kindOf = (m) => (m === state.a ? "first" : m === state.b ? "second" : "other");
  const rank = { other: 0, second: 1, first: 2 };
  const series = shown.map(({ m, columns }) => {
    const y = columns[state.measure], error = columns[`${state.measure}_stderr`];
    const tips = (i) => [el("span", {}, `${D.models[m].layers[i]}, ${D.models[m].name}`), el("b", {}, measured(y[i], error[i]))];
    return { m, y, error, kind: kindOf(m), tips };
  }).sort((p, q) => rank[p.kind] - rank[q.kind]);
  const all = series.flatMap((s) => s.y.flatMap((v, i) => (known(v) ? [v - 2 * (s.error[i] || 0), v + 2 * (s.error[i] || 0)] : [])));
  const [low, high] = all.length ? [Math.min(...all), Math.max(...all)] : [0, 1], pad = (high - low || 1) * 0.05;
  const deepest = shown.reduce((best, { m }) => (D.models[m].layers.length > best.length ? D.models[m].layers : best), []);
  const measure = MEASURES[state.measure];
  $("adaptation-caption").textContent = `${measure} by layer${series.some((s) => s.kind === "other") ? "; layers of all networks by position" : ""}`;
  chart($("adaptation-plot"), { names: deepest, low: state.measure === "mean_embedding" ? 0 : low - pad, high: high + pad, series, label: `${measure} by layer of each network` });
  $("adaptation-keys").replaceChildren(...["first", "second", "other"].flatMap((kind) => {
    const of = series.filter((s) => s.kind === kind);
    return of.length ? [el("span", {}, el("i", { class: `k-${kind}` }), kind === "other" ? "the others" : D.models[of[0].m].name)] : [];
  }));
  const value = (c, name, i) => measured(c[name][i], c[`${name}_stderr`][i]);
  table($("adaptation-table"), ["Network", "First layer", "Last layer", "Mean over layers"], shown.map(({ m, columns: c }) => [
    coloured(D.models[m].name, kindOf(m)), value(c, state.measure, 0), value(c, state.measure, D.models[m].layers.length - 1), measured(mean(c[state.measure]), NaN),
  ]), [1]);
  table($("adaptation-values"), ["Network", "Layer", "Norm ‖μ‖", "Log ratio"], shown.flatMap(({ m, columns: c }) =>
    D.models[m].layers.map((layer, i) => [D.models[m].name, layer, value(c, "mean_embedding", i), value(c, "log_ratio", i)])), [2]);
}

function drawProvenance() {
  const fields = [...new Set(D.models.flatMap((m) => Object.keys(m.provenance)))];
  const content = (m, field) => m.provenance[field] ?? "–";
  const show = (field, text) => (/fingerprint|weights/.test(field) && text !== "–" ? el("code", {}, text) : text);
  const [shared, differing] = [true, false].map((same) =>
    fields.filter((field) => D.models.every((m) => content(m, field) === content(D.models[0], field)) === same));
  $("shared").replaceChildren(...shared.map((field) => el("div", {}, el("dt", {}, field), el("dd", {}, show(field, content(D.models[0], field))))));
  if (differing.length)
    table($("differing"), ["Network", ...differing], D.models.map((m) => [m.name, ...differing.map((field) => show(field, content(m, field)))]), [99]);
}

// -- controls --------------------------------------------------------------------------------------

function radios(host, key, options, title) {
  for (const [value, text] of options) {
    const input = el("input", { type: "radio", name: key, value, onchange: () => { state[key] = value; update(); } });
    host.append(el("label", { class: "choice", title: title ? title(value) : null }, input, el("span", {}, text)));
  }
}
function update() {
  const v = view(state.a, state.b, state.kernel, state.index);
  for (const key of ["kernel", "index", "measure"])
    document.querySelectorAll(`input[name=${key}]`).forEach((input) => { input.checked = input.value === state[key]; });
  $("row").value = state.a;
  $("column").value = state.b;
  $("shown").textContent = `${nameA()} and ${nameB()}: ${indexWords()} of ${kernelWords(v)}`;
  drawOverview();
  drawCard(v);
  drawPair(v);
  drawAdaptation();
  try { history.replaceState(null, "", `#${new URLSearchParams({ kernel: state.kernel, index: state.index, a: state.a, b: state.b })}`); } catch { /* not allowed in some viewers */ }
}
function refit() {
  hideTip();
  const size = $("overview").fit && $("overview").fit();
  const found = D.overview.find((o) => o.kernel === state.kernel && o.index === state.index);
  if (size && found) tree($("tree"), found, size);
  if ($("map").fit) $("map").fit();
  for (const id of ["curve", "adaptation-plot"]) if ($(id).draw) $(id).draw();
}
function setTheme(dark) {
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  $("theme").textContent = dark ? "Light" : "Dark";
  $("theme").setAttribute("aria-label", `Switch to ${dark ? "light" : "dark"} colours`);
}
async function copy() {
  const text = JSON.stringify(plain(view(state.a, state.b, state.kernel, state.index)), null, 1);
  let done = true;
  try { await navigator.clipboard.writeText(text); } catch {
    const area = el("textarea", { "aria-hidden": "true" });
    area.value = text;
    document.body.append(area);
    area.select();
    done = document.execCommand("copy");
    area.remove();
  }
  $("status").textContent = done ? "Copied." : "The browser did not allow copying; download it instead.";
}
function download() {
  const text = JSON.stringify(plain(view(state.a, state.b, state.kernel, state.index)), null, 1);
  const url = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  const name = [nameA(), nameB(), state.kernel, state.index].join("-").replace(/[^\w.-]+/g, "_");
  el("a", { href: url, download: `${name}.json` }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
  $("status").textContent = "Comparison.load reads this file.";
}

const night = matchMedia("(prefers-color-scheme: dark)");
const follow = () => setTheme(night.matches);
follow();
night.addEventListener("change", follow);
$("theme").addEventListener("click", () => { night.removeEventListener("change", follow); setTheme(document.documentElement.dataset.theme !== "dark"); });
$("summary").textContent = D.summary;
$("unpaired").hidden = !D.unpaired;
$("made").textContent = `Made on ${D.made.date} with resemblance ${D.made.version}.`;
radios($("kernels"), "kernel", D.kernels.map((k) => [k, KERNELS[k][0]]), (k) => KERNELS[k][1]);
radios($("indices"), "index", D.indices.map((i) => [i, INDICES[i]]));
radios($("columns"), "measure", Object.entries(MEASURES));
$("pair").hidden = one;
for (const [id, key] of [["row", "a"], ["column", "b"]]) {
  $(id).append(...D.models.map((m, i) => el("option", { value: i }, m.name)));
  $(id).addEventListener("change", () => { state[key] = Number($(id).value); update(); });
}
$("swap").addEventListener("click", () => { [state.a, state.b] = [state.b, state.a]; update(); });
for (const legend of document.querySelectorAll(".legend"))
  legend.replaceChildren(el("span", {}, "0", el("i", { class: "ramp" }), "1"), legend.closest("#layers") ? el("span", { class: "of-chance" }, el("i", { class: "hatch" }), "not above chance") : "");
$("values-box").addEventListener("toggle", drawValues);
$("copy").addEventListener("click", copy);
$("download").addEventListener("click", download);
for (const [key, value] of new URLSearchParams(location.hash.slice(1))) {
  if (key === "kernel" && D.kernels.includes(value)) state.kernel = value;
  if (key === "index" && D.indices.includes(value)) state.index = value;
  if ((key === "a" || key === "b") && D.models[value]) state[key] = Number(value);
}
drawProvenance();
update();
let frame = 0;
addEventListener("resize", () => { cancelAnimationFrame(frame); frame = requestAnimationFrame(refit); });
addEventListener("beforeprint", () => { printing = true; refit(); });
addEventListener("afterprint", () => { printing = false; refit(); });
})();
