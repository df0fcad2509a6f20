"use strict";
(async () => {
const { $, KERNELS, INDICES, TREE, inflated, el, known, fixed, likeness, inCell, measured, mean, shorten, coloured, plural, listed, hideTip, scoreTip, heat, tree, chart, table, panes, pane, placePanes, roomIn, radios, check, followTheme, legends, ramp } = charts;
if (!("DecompressionStream" in window)) { $("too-old").hidden = false; return; }
const D = await (await inflated($("data").textContent)).json();
const bytes = new Uint8Array(await (await inflated($("numbers").textContent)).arrayBuffer());
const MEASURES = { log_ratio: "Log ratio", mean_embedding: "Norm ‖μ‖" };
const one = D.models.length === 1;
const state = { show: "both", index: D.indices[0], measure: "log_ratio", sort: D.in_order ? "given" : "cluster", find: "", against: "previous" };
const { SHOWN, offers, offered, shownKernels, entries, pairKey, view, at, behaviours, nameA, nameB, indexWords, whyNot, drawCard, drawPair, drawValues, drawProvenance, saveButtons } = pairsOf(D, bytes, state);
const starts = [...entries.values()].filter((c) => shownKernels().includes(c.kernel) && c.index === state.index && (one || c.a !== c.b));
const start = starts.find((c) => c.paired) || starts[0];
Object.assign(state, { a: start.a, b: start.b });

// -- sections --------------------------------------------------------------------------------------

const overviewOf = (kernel) => D.overview.find((o) => o.kernel === kernel && o.index === state.index);
const scoreOf = (kernel, i, j) => { const o = overviewOf(kernel); return o ? o.scores[i][j] : null; };

// -- networks: which, and in which order --

function ordered() {
  const all = D.models.map((_, i) => i), clusters = D.order[state.index].order;
  const near = (i) => (i === state.a ? 2 : mean(shownKernels().map((kernel) => scoreOf(kernel, state.a, i))));
  const by = {
    given: all, cluster: clusters,
    name: [...all].sort((i, j) => D.models[i].name.localeCompare(D.models[j].name, "en", { numeric: true })),
    near: [...all].sort((i, j) => (near(j) || 0) - (near(i) || 0)),
  };
  const words = state.find.toLowerCase().split(/\s+/).filter(Boolean);
  return by[state.sort].filter((i) => words.every((word) => D.models[i].name.toLowerCase().includes(word)));
}
function drawOverview() {
  $("models-tools").hidden = $("models").querySelector(".legend").hidden = one;
  if (one) { $("models-title").textContent = "The network"; $("models-gloss").textContent = "How similar each layer is to the one before it."; return; }
  const order = ordered(), names = order.map((i) => D.models[i].name), kernels = shownKernels();
  const known_ = D.behaviour.some((x) => known(x.value));
  $("found").textContent = order.length === D.models.length ? plural(order.length, "network") : order.length ? `${order.length} of ${plural(D.models.length, "network")}` : `No name contains “${state.find.trim()}”.`;
  $("sort").querySelector("[value=near]").textContent = `similarity to ${shorten(nameA(), 24)}`;
  $("models-gloss").textContent = `${indexWords()}, mean over matched layers. Select a cell to see that pair.`;
  placePanes("overview", order.length ? [...kernels, ...(known_ ? ["predictions"] : [])] : []);
  if (!order.length) return;
  const picked = [order.indexOf(state.a), order.indexOf(state.b)].includes(-1) ? null : [order.indexOf(state.a), order.indexOf(state.b)];
  const choose = (i, j) => { state.a = order[i]; state.b = order[j]; update(); };
  const trees = state.sort === "cluster" && order.length === D.models.length && order.length > 2 && innerWidth > 700;
  for (const kernel of kernels) {
    const { host, side } = pane("overview", kernel), o = overviewOf(kernel);
    const size = heat(host, {
      rows: names, columns: names, picked, choose, room: roomIn(host, trees ? TREE + 8 : 4),
      label: `Similarity of networks, ${indexWords()} of ${kernel}`,
      cell: (i, j) => {
        const value = scoreOf(kernel, order[i], order[j]), error = o ? o.stderr[order[i]][order[j]] : null;
        const words = known(value) ? likeness(value) : whyNot(order[i], order[j], kernel) || "undefined";
        return {
          value, label: `${names[i]} and ${names[j]}: ${words}`,
          tip: [
            el("span", {}, `${names[i]} × ${names[j]}`), el("b", {}, known(value) ? likeness(value, error) : "–"),
            el("small", {}, known(value) ? `${kernel}, mean over layers` : words),
          ],
        };
      },
    });
    const last = kernel === kernels[kernels.length - 1];
    side.replaceChildren();
    if (trees && last) tree(side, D.order[state.index], size);
  }
  if (known_) drawPredictions(order, names, picked, choose, trees ? TREE + 8 : 4);
  const why = [...new Set(D.behaviour.map((x) => x.why).filter(Boolean))];
  $("no-predictions").textContent = why.length ? `${known_ ? "Blank cells: predictions" : "Predictions"} cannot be compared, because ${why[0]}.` : "";
  $("findings").replaceChildren(...kernels.flatMap((kernel) => {
    const pairs = order.flatMap((i, p) => order.slice(p + 1).flatMap((j) => (known(scoreOf(kernel, i, j)) ? [[scoreOf(kernel, i, j), i, j]] : []))).sort((p, q) => q[0] - p[0]);
    const say = ([v, i, j]) => `${D.models[i].name} and ${D.models[j].name} (${inCell(v)})`;
    return pairs.length > 1 ? [el("li", {}, `${KERNELS[kernel][0]}: most similar ${say(pairs[0])}, least similar ${say(pairs[pairs.length - 1])}.`)] : [];
  }));
}
function drawPredictions(order, names, picked, choose, spare) {
  const { host } = pane("overview", "predictions");
  const of = (i, j) => (order[i] === order[j] ? { value: 0, error: 0 } : behaviours.get(pairKey(order[i], order[j])));
  const percent = (x) => `${known(x) ? (100 * x).toFixed(x > 0 && x < 0.0995 ? 1 : 0) : "–"} %`;
  heat(host, {
    rows: names, columns: names, picked, choose, room: roomIn(host, spare), label: "Share of samples with a different predicted class",
    cell: (i, j) => {
      const found = of(i, j), there = known(found.value), words = there ? `${percent(found.value)} of samples with a different predicted class` : found.why || (found.words || [""])[0];
      return {
        value: there ? 1 - found.value : null, text: there ? (100 * found.value).toFixed(found.value > 0 && found.value < 0.0995 ? 1 : 0) : "", label: `${names[i]} and ${names[j]}: ${words}`,
        tip: [el("span", {}, `${names[i]} × ${names[j]}`), el("b", {}, there ? percent(found.value) : "–"), el("small", {}, there ? `of samples with a different predicted class${known(found.error) ? `, standard error ${percent(found.error)}` : ""}` : words)],
      };
    },
  });
}

// -- checkpoints in order --

function drawCourse() {
  $("course").hidden = !D.in_order;
  if (!D.in_order) return;
  const last = D.models.length - 1, kernels = shownKernels();
  const times = D.models.map((_, t) => t).filter((t) => state.against !== "previous" || t > 0);
  const fixedTo = { first: 0, last };
  const reference = (t) => (state.against === "previous" ? t - 1 : fixedTo[state.against]);
  const layers = D.models[0].layers, names = times.map((t) => D.models[t].name);
  const where = (kernel, i, t) => { // the layer of the first network, followed to both
    const r = reference(t), v = view(r, t, kernel);
    const row = r === 0 ? i : (view(0, r, kernel) || { matched: [] }).matched[i];
    return v && known(row) && known(v.matched[row]) ? [v, [row, r === t ? row : v.matched[row]]] : null;
  };
  placePanes("course-maps", kernels);
  const against = { previous: "the one before it", first: D.models[0].name, last: D.models[last].name }[state.against];
  $("course-gloss").textContent = `Each layer (row) at each checkpoint (column), compared with ${against}. Select a cell to see that pair.`;
  const said = [];
  for (const kernel of kernels) {
    const { host } = pane("course-maps", kernel);
    heat(host, {
      rows: layers, columns: names, room: roomIn(host, 4), label: `${KERNELS[kernel][0]} by layer and checkpoint, compared with ${against}`,
      choose: (i, k) => { state.a = reference(times[k]); state.b = times[k]; update(); },
      cell: (i, k) => {
        const found = where(kernel, i, times[k]), score = found ? at(found[0].scores, found[1]) : NaN;
        const error = found ? at(found[0].stderr, found[1]) : NaN, high = found ? at(found[0].chance_high, found[1]) : NaN;
        return {
          value: score, weak: known(high) && score <= high, label: `${layers[i]}, ${names[k]} with ${D.models[reference(times[k])].name}: ${known(score) ? likeness(score, error) : "undefined"}`,
          tip: scoreTip(`${layers[i]}: ${D.models[reference(times[k])].name} × ${names[k]}`, score, error, found ? at(found[0].chance, found[1]) : NaN, high),
        };
      },
    });
    const steps = D.models.slice(1).map((_, t) => [scoreOf(kernel, t, t + 1), t]).filter(([v]) => known(v)).sort((p, q) => p[0] - q[0]);
    if (steps.length > 1) said.push(`${KERNELS[kernel][0]} change most from ${D.models[steps[0][1]].name} to ${D.models[steps[0][1] + 1].name} (${inCell(steps[0][0])}), least from ${D.models[steps[steps.length - 1][1]].name} to ${D.models[steps[steps.length - 1][1] + 1].name} (${fixed(steps[steps.length - 1][0], 2)}).`);
  }
  $("course-words").replaceChildren(...said.map((words) => el("li", {}, words)));
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

// -- controls --------------------------------------------------------------------------------------

function update() {
  for (const key of ["show", "index", "measure", "against"]) check(key, state[key]);
  $("row").value = state.a;
  $("column").value = state.b;
  $("sort").value = state.sort;
  $("shown").textContent = `${nameA()} and ${nameB()}: ${indexWords()} of ${listed(shownKernels())}`;
  drawOverview();
  drawCard();
  drawCourse();
  drawPair();
  drawAdaptation();
  const { show, index, a, b, sort, find } = state;
  try { history.replaceState(null, "", `#${new URLSearchParams({ show, index, a, b, sort, ...(find ? { find } : {}) })}`); } catch { /* not allowed in some viewers */ }
}
function refit() {
  hideTip();
  let size = 0;
  for (const [key, { host, side, figure }] of panes) {
    if (figure.hidden || !host.fit) continue;
    size = host.fit();
    if (key.startsWith("overview-") && side.childElementCount) tree(side, D.order[state.index], size);
  }
  for (const id of ["curve", "adaptation-plot"]) if ($(id).draw) $(id).draw();
}
followTheme();
$("summary").textContent = D.summary;
$("unpaired").hidden = !D.unpaired;
$("made").textContent = `Made on ${D.made.date} with resemblance ${D.made.version}.`;
const switches = (key, title) => ({ title, choose: (value) => { state[key] = value; update(); } });
radios($("kernels"), "show", offers, switches("show", (show) => SHOWN[show].map((kernel) => KERNELS[kernel][1]).join(" ")));
$("kernels").hidden = offers.length < 2;
radios($("indices"), "index", D.indices.map((i) => [i, INDICES[i]]), switches("index"));
$("indices").hidden = D.indices.length < 2;
radios($("againsts"), "against", [["previous", "the one before"], ["first", "the first"], ["last", "the last"]], switches("against"));
radios($("columns"), "measure", Object.entries(MEASURES), switches("measure"));
$("pair").hidden = one;
for (const [id, key] of [["row", "a"], ["column", "b"]]) {
  $(id).append(...D.models.map((m, i) => el("option", { value: i }, m.name)));
  $(id).addEventListener("change", () => { state[key] = Number($(id).value); update(); });
}
$("swap").addEventListener("click", () => { [state.a, state.b] = [state.b, state.a]; update(); });
legends();
if (D.behaviour.some((x) => known(x.value))) $("models").querySelector(".legend").append(ramp("predictions: 100 %", "0 %"));
$("values-box").addEventListener("toggle", drawValues);
saveButtons();
const waiting = el("option", { value: "near" }, "");
$("sort").append(...[["cluster", "similarity (clustered)"], ["name", "name"], ["given", D.in_order ? "time" : "input order"]].map(([value, words]) => el("option", { value }, words)), waiting);
for (const form of document.querySelectorAll("form")) form.addEventListener("submit", (event) => event.preventDefault());
$("sort").addEventListener("change", () => { state.sort = $("sort").value; update(); });
$("find").addEventListener("input", () => { state.find = $("find").value; drawOverview(); });
for (const [key, value] of new URLSearchParams(location.hash.slice(1))) {
  if (key === "show" && offered(value)) state.show = value;
  if (key === "sort" && ["cluster", "name", "given", "near"].includes(value)) state.sort = value;
  if (key === "find") $("find").value = state.find = value;
  if (key === "index" && D.indices.includes(value)) state.index = value;
  if ((key === "a" || key === "b") && /^\d+$/.test(value) && D.models[value]) state[key] = Number(value);
}
drawProvenance();
update();
document.documentElement.dataset.ready = "yes";
let frame = 0;
addEventListener("resize", () => { cancelAnimationFrame(frame); frame = requestAnimationFrame(refit); });
for (const type of ["beforeprint", "afterprint"]) addEventListener(type, refit);
})();
