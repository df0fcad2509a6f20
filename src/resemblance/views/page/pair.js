"use strict";
// Pairs of networks: what the packed numbers of `report_contents` say, and one pair drawn layer
// by layer into the elements of layers.html. `state` holds a, b, show and index, and may change.
const pairsOf = (D, bytes, state) => {
const { $, KERNELS, INDICES, el, known, fixed, significant, likeness, inCell, mean, coloured, scoreTip, heat, chart, table, pane, placePanes, roomIn } = charts;
const TABLES = ["scores", "chance", "chance_high"];
const sides = ["features", "gradients"].filter((kernel) => D.kernels.includes(kernel));
const SHOWN = { both: sides, product: ["product"] };
const shownKernels = () => SHOWN[state.show];
const offers = [...(sides.length ? [["both", sides.map((kernel, i) => (i ? kernel : KERNELS[kernel][0])).join(" and ")]] : []), ...(D.kernels.includes("product") ? [["product", "Product"]] : [])];
const offered = (show) => Object.hasOwn(SHOWN, show) && SHOWN[show].length > 0 && SHOWN[show].every((kernel) => D.kernels.includes(kernel));
state.show = offered(state.show) ? state.show : sides.length ? "both" : "product";
state.index = D.indices.includes(state.index) ? state.index : D.indices[0];

// -- numbers ---------------------------------------------------------------------------------------

const keyOf = (...parts) => JSON.stringify(parts);
const entries = new Map(), reasons = new Map(D.missing.map((c) => [keyOf(c.a, c.b, c.kernel, c.index), c.why]));
let wide = 0, narrow = 0;
for (const entry of D.comparisons) { // where the numbers of each begin
  const size = D.models[entry.a].layers.length * D.models[entry.b].layers.length;
  Object.assign(entry, { at: wide, errors: narrow, size });
  wide += size * (entry.chance ? 3 : 1);
  narrow += size;
  entries.set(keyOf(entry.a, entry.b, entry.kernel, entry.index), entry);
}
const codes = new Int16Array(wide), steps = new Uint8Array(narrow);
for (let i = 0, sum = 0; i < wide; i++) { // differences, small for either sign
  const folded = bytes[i] | (bytes[wide + i] << 8);
  codes[i] = sum += (folded >>> 1) ^ -(folded & 1);
}
for (let i = 0, sum = 0; i < narrow; i++) steps[i] = sum = (sum + bytes[2 * wide + i]) & 255;
const scoreAt = (i) => charts.decoded(codes[i]);
const errorAt = (i) => (steps[i] === 255 ? NaN : steps[i] === 0 ? 0 : 10 ** (-6 * (1 - (steps[i] - 1) / 253)));

const cache = new Map();
function view(a, b, kernel, index = state.index) {
  const entry = entries.get(keyOf(Math.min(a, b), Math.max(a, b), kernel, index));
  if (!entry) return null;
  const key = keyOf(a, b, kernel, index);
  if (!cache.has(key)) cache.set(key, decode(entry, a, b));
  return cache.get(key);
}
function decode(entry, a, b) {
  const flip = a > b;
  const rows = D.models[a].layers, columns = D.models[b].layers;
  const place = (i, j) => (flip ? j * rows.length + i : i * columns.length + j);
  const filled = (of) => rows.map((_, i) => columns.map((_, j) => of(place(i, j))));
  const out = { ...entry, a, b, rows, columns, samples: flip ? [...entry.samples].reverse() : entry.samples };
  TABLES.forEach((part, k) => { out[part] = k && !entry.chance ? null : filled((at) => scoreAt(entry.at + k * entry.size + at)); });
  out.stderr = filled((at) => errorAt(entry.errors + at));
  out.matched = entry.matched[flip ? 1 : 0];
  const last = rows.length - 1;
  out.which = a === b && last > 0 ? "neighbouring" : "matched";
  out.pairs = out.which === "neighbouring" ? rows.slice(0, last).map((_, i) => [i, i + 1]) : out.matched.flatMap((j, i) => (j === null ? [] : [[i, j]]));
  // what is known of a row with its counterpart, of the network that came first
  const known = (i, j) => (out.which === "neighbouring" || entry.matched[0][flip ? j : i] !== (flip ? i : j) ? null : flip ? j : i);
  out.doubtful = out.pairs.map(([i, j]) => entry.doubtful.includes(known(i, j)));
  out.carriers = out.pairs.map(([i, j]) => (entry.n_eff && known(i, j) !== null ? entry.n_eff[known(i, j)] : null));
  const [row, words] = entry.parting || [null, null];
  out.parts = row === null ? -1 : out.pairs.findIndex(([i, j]) => known(i, j) === row);
  out.partingWords = words;
  // by similarity, a layer that was not chosen is no layer without a counterpart
  out.alone = entry.by === "similarity" ? [[], []] : [rows, columns].map((names, side) => names.filter((_, i) => entry.matched[side ^ flip][i] === null));
  return out;
}
const at = (matrix, [i, j]) => (matrix ? matrix[i][j] : NaN);
const along = (v, part) => v.pairs.map((pair) => at(v[part], pair));
const isWeak = (v, pair) => v.chance_high !== null && at(v.scores, pair) <= at(v.chance_high, pair);
const meanOf = (v) => (!v ? NaN : v.which === "neighbouring" ? mean(along(v, "scores")) : v.mean[0]);
function plain(v) { // what Comparison.load reads
  const clean = (x) => Array.isArray(x) ? x.map(clean) : Number.isNaN(x) ? null : typeof x === "number" ? Number(x.toFixed(6)) : x;
  return {
    comparison: 1, models: [D.models[v.a].name, D.models[v.b].name], rows: v.rows, columns: v.columns,
    ...Object.fromEntries(["scores", "stderr", "chance", "chance_high"].map((part) => [part, clean(v[part])])), kernel: v.kernel, index: v.index,
    centre: v.centre, estimator: v.estimator, paired: v.paired, samples: v.samples, tokens: v.tokens,
    notes: [...v.notes, "exported from a report: scores to three decimals, standard errors to 3 %"],
    matched_by: v.by, matched: v.matched,
  };
}
const pairKey = (a, b) => keyOf(Math.min(a, b), Math.max(a, b));
const behaviours = new Map(D.behaviour.map((x) => [keyOf(x.a, x.b), x]));
const moves = new Map(D.moved.map((x) => [keyOf(x.a, x.b), x]));
const nameA = () => D.models[state.a].name;
const nameB = () => D.models[state.b].name;
const indexWords = () => INDICES[state.index];
const whyNot = (i, j, kernel) => reasons.get(keyOf(Math.min(i, j), Math.max(i, j), kernel, state.index));

// -- one pair --------------------------------------------------------------------------------------

function drawCard() {
  const self = state.a === state.b, v = shownKernels().map((kernel) => view(state.a, state.b, kernel)).find(Boolean);
  $("card-title").replaceChildren(...(self ? [coloured(nameA(), "first"), " with itself"] : [coloured(nameA(), "first"), " and ", coloured(nameB(), "second")]));
  $("card-which").textContent = !v ? "layers and their counterparts" : v.which === "matched" ? `layers matched by ${v.by}` : `${v.which} layers`;
  const percent = (x) => `${100 * Math.min(Math.max(x, 0), 1)}%`;
  $("tiles").replaceChildren(...D.kernels.map((kernel) => {
    const here = view(state.a, state.b, kernel), score = meanOf(here), high = here ? mean(along(here, "chance_high")) : NaN;
    return el("div", { class: `tile${shownKernels().includes(kernel) ? " on" : ""} s-${kernel}` },
      el("span", { class: "what" }, KERNELS[kernel][0], el("small", {}, KERNELS[kernel][1])),
      el("span", { class: "much" }, likeness(score, here && here.which === "matched" ? here.mean[1] : NaN)),
      el("span", { class: "rule" }, known(score) ? el("i", { style: `width:${percent(score)}` }) : null,
        known(high) ? el("b", { style: `left:${percent(high)}`, title: `95 % chance level ${fixed(high, 2)}` }) : null));
  }));
  const found = self ? null : behaviours.get(pairKey(state.a, state.b));
  $("card-words").textContent = !found ? "" : found.words ? found.words[state.a > state.b ? 1 : 0] : (found.why ? `Predictions cannot be compared, because ${found.why}.` : `They predict a different class for ${(100 * found.value).toFixed(1)} % of samples.`);
}
function words(v) {
  const value = along(v, "scores"), error = along(v, "stderr");
  const order = value.map((_, i) => i).filter((i) => known(value[i])).sort((i, j) => value[i] - value[j]);
  if (!order.length) return `${KERNELS[v.kernel][0]}: no layer has a defined score.`;
  const low = order[0], high = order[order.length - 1];
  const where = (i) => `${v.rows[v.pairs[i][0]]}${v.which === "neighbouring" ? " → " + v.columns[v.pairs[i][1]] : ""} (${likeness(value[i], error[i])})`;
  const above = v.pairs.filter((pair) => !isWeak(v, pair) && known(at(v.scores, pair))).length;
  const most = low === high ? `${where(low)}` : `most similar at ${where(high)}, least at ${where(low)}`;
  return `${KERNELS[v.kernel][0]}: ${most}.${v.chance ? ` Above chance: ${above} of ${value.length}.` : ""}`;
}
function movedWords(found) {
  if (!found) return null;
  const [first, second] = [D.models[found.a].name, D.models[found.b].name], layers = D.models[found.a].layers;
  const says = found.kinds.map((kind, k) => {
    const order = found.rows.map((_, i) => i).filter((i) => known(found.decibels[k][i])).sort((i, j) => found.decibels[k][j] - found.decibels[k][i]);
    const told = (i) => `at ${layers[found.rows[i]]} (${found.decibels[k][i] >= 999 ? "unchanged" : `${fixed(found.decibels[k][i], 1)} dB`})`;
    return order.length ? `${kind} drifted least ${told(order[0])}, most ${told(order[order.length - 1])}` : null;
  }).filter(Boolean);
  return `Their units are in the same order. From ${first} to ${second}, ${says.join("; ")}.`;
}
function drawPair() {
  const self = state.a === state.b, kernels = shownKernels();
  const views = kernels.map((kernel) => view(state.a, state.b, kernel)).filter(Boolean);
  $("status").textContent = "";
  $("pair-body").hidden = !views.length;
  $("layers-title").replaceChildren("Layer by layer: ", coloured(nameA(), "first"), ...(self ? [" with itself"] : [" and ", coloured(nameB(), "second")]));
  const lost = kernels.filter((kernel) => !view(state.a, state.b, kernel)).map((kernel) => whyNot(state.a, state.b, kernel) || "this pair was not compared");
  if (!views.length) { $("heading").textContent = `Not available: ${lost[0]}.`; return; }
  const v = views[0], chance = views.some((one) => one.chance);
  $("pair-body").classList.toggle("no-chance", !chance);
  $("heading").textContent = `${indexWords()}. ${views.map((one) => sourceWords(one, self)).join(" ")}${lost.length ? ` Not available: ${lost[0]}.` : ""}`;
  placePanes("maps", views.map((one) => one.kernel));
  for (const one of views) {
    const { host } = pane("maps", one.kernel);
    const here = (i, j) => ["scores", "stderr", "chance", "chance_high"].map((part) => at(one[part], [i, j]));
    heat(host, {
      rows: one.rows, columns: one.columns, label: `${KERNELS[one.kernel][0]}: layers of ${nameA()} by layers of ${nameB()}`, room: roomIn(host, 4),
      cell: (i, j) => {
        const [score, error, mid, high] = here(i, j);
        return {
          value: score, weak: isWeak(one, [i, j]),
          label: `${one.rows[i]} of ${nameA()}, ${one.columns[j]} of ${nameB()}: ${known(score) ? likeness(score, error) : "undefined"}${known(mid) ? `, chance ${fixed(mid)}, 95 % level ${fixed(high)}` : ""}`,
          tip: scoreTip(`${one.rows[i]} × ${one.columns[j]}`, score, error, mid, high),
        };
      },
    });
  }
  drawCurve(views);
  drawCounterparts(views);
  drawValues();
}
function sourceWords(v, self) {
  const count = v.samples.map((n) => n.toLocaleString("en")), unit = v.tokens ? "tokens" : "samples", shared = self ? "" : "shared ";
  const source = { blocks: `from exact Gram matrices of ${count[0]} ${shared}${unit}`, ratio: `from exact Gram matrices of some of ${count[0]} ${shared}${unit} and the norms of all`, buckets: `from sketches of ${v.paired ? count[0] + " shared" : count.join(" and ")} ${unit}` };
  return `${KERNELS[v.kernel][0]}${v.centre ? ", centred," : ""} ${source[v.estimator] || v.estimator}${v.paired ? "" : ", which are not paired"}.`;
}
function drawCurve(views) {
  const v = views[0], title = v.which === "neighbouring" ? "Each layer with the next" : `Each layer with its counterpart, matched by ${v.by}`;
  $("curve-title").textContent = title;
  const every = views.flatMap((one) => along(one, "scores").filter(known));
  const floor = Math.min(0, ...every);
  chart($("curve"), {
    names: v.pairs.map(([i]) => v.rows[i]), low: floor < -0.02 ? floor : 0, high: 1, label: `${title}. ${views.map(words).join(" ")}`,
    series: views.map((one) => ({
      y: along(one, "scores"), error: along(one, "stderr"), kind: one.kernel, hollow: one.doubtful, mark: one.parts, band: one.chance ? along(one, "chance_high") : null,
      tips: (k) => [
        ...scoreTip(`${KERNELS[one.kernel][0]}: ${one.rows[one.pairs[k][0]]} × ${one.columns[one.pairs[k][1]]}`, ...["scores", "stderr", "chance", "chance_high"].map((part) => at(one[part], one.pairs[k]))),
        one.carriers[k] === null ? null : el("small", {}, `n_eff ${one.carriers[k].toLocaleString("en")}${one.doubtful[k] ? ": its error bar may be too small" : ""}`),
      ].filter(Boolean),
    })),
  });
  $("curve-keys").replaceChildren(
    ...views.map((one) => el("span", {}, el("i", { class: `k-${one.kernel}` }), `${KERNELS[one.kernel][0].toLowerCase()} ± 2 standard errors`)),
    ...(views.some((one) => one.chance) ? [el("span", {}, el("i", { class: "key-band" }), "below the 95 % chance level")] : []),
    ...(views.some((one) => one.doubtful.includes(true)) ? [el("span", {}, el("i", { class: "key-hollow" }), "hollow: a few samples dominate (n_eff), error bar may be too small")] : []));
  const alone = v.alone.flatMap((names, side) => (names.length ? [`Layers of ${side ? nameB() : nameA()} without a counterpart: ${names.join(", ")}.`] : []));
  const found = state.a === state.b ? null : moves.get(keyOf(state.a, state.b));
  const told = [
    ...views.flatMap((one) => [words(one), one.partingWords]),
    movedWords(found), ...alone,
    ...views.map((one) => (one.carried === null ? null : `${KERNELS[one.kernel][0]}: ${one.carried}.`)),
  ].filter(Boolean);
  const notes = [...new Set(views.flatMap((one) => one.notes))];
  $("notes").replaceChildren(...told.map((line) => el("li", {}, line)), ...notes.map((note) => el("li", { class: "quiet-text" }, `Note: ${note}.`)));
}
function drawCounterparts(views) {
  const self = state.a === state.b, v = views[0], found = self ? null : moves.get(keyOf(state.a, state.b));
  const scored = views.flatMap((one) => [`${KERNELS[one.kernel][0]} ± error`, "Chance, 95 %", "n_eff"]);
  const moved = found ? found.kinds.flatMap((kind) => [`${KERNELS[kind][0]} drift, dB`, "Cosine"]) : [];
  const heads = [`Layer of ${nameA()}`, v.which === "neighbouring" ? "Next layer" : `Counterpart, by ${v.by}`, ...scored, ...moved, self ? "Most similar other layer" : `Most similar layer of ${nameB()}`];
  table($("matches"), heads, v.rows.map((name, i) => {
    const k = v.pairs.findIndex(([row]) => row === i), pair = k < 0 ? null : v.pairs[k];
    const others = v.columns.map((_, j) => j).filter((j) => !(self && j === i && v.columns.length > 1) && known(v.scores[i][j]));
    const best = others.sort((p, q) => v.scores[i][q] - v.scores[i][p])[0];
    const same = best !== undefined && pair && best === pair[1];
    const row = found ? found.rows.indexOf(i) : -1;
    return [
      name, pair ? v.columns[pair[1]] : "–",
      ...views.flatMap((one) => {
        const m = one.pairs.findIndex(([row]) => row === i), p = m < 0 ? null : one.pairs[m];
        return [p ? likeness(at(one.scores, p), at(one.stderr, p)) : "–", p ? fixed(at(one.chance_high, p)) : "–", p && one.carriers[m] !== null ? el("span", { title: one.doubtful[m] ? "the error bar may be too small" : null }, `${one.doubtful[m] ? "⚠ " : ""}${one.carriers[m].toLocaleString("en")}`) : "–"];
      }),
      ...(found ? found.kinds.flatMap((_, kind) => (row < 0 ? ["–", "–"] : [found.decibels[kind][row] >= 999 ? "unchanged" : fixed(found.decibels[kind][row], 1), likeness(found.cosine[kind][row])])) : []),
      best === undefined ? "–" : el("span", { class: same ? "quiet" : null }, `${v.columns[best]} (${inCell(v.scores[i][best])})`),
    ];
  }), [2, [heads.length - 1]]);
}
function drawValues() {
  const views = shownKernels().map((kernel) => view(state.a, state.b, kernel)).filter(Boolean);
  if (!views.length || !$("values-box").open) return;
  const v = views[0];
  table($("values"), [`Layer of ${nameA()}`, `Layer of ${nameB()}`, ...views.flatMap((one) => [KERNELS[one.kernel][0], "Standard error", "Chance, mean", "Chance, 95 %"])],
    v.rows.flatMap((row, i) => v.columns.map((column, j) => [row, column, ...views.flatMap((one) => [fixed(at(one.scores, [i, j])), significant(Number(at(one.stderr, [i, j]).toPrecision(2))), fixed(at(one.chance, [i, j])), fixed(at(one.chance_high, [i, j]))])])), [2]);
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

// -- one pair as a file ----------------------------------------------------------------------------

const jsonOf = (kernel) => JSON.stringify(plain(view(state.a, state.b, kernel)), null, 1);
async function copy(kernel) {
  const content = jsonOf(kernel);
  let done = true;
  try { await navigator.clipboard.writeText(content); } catch {
    const area = el("textarea", { "aria-hidden": "true" });
    area.value = content;
    document.body.append(area);
    area.select();
    done = document.execCommand("copy");
    area.remove();
  }
  $("status").textContent = done ? "Copied." : "The browser blocked copying; download the file instead.";
}
function download(kernel) {
  const url = URL.createObjectURL(new Blob([jsonOf(kernel)], { type: "application/json" }));
  const name = [nameA(), nameB(), kernel, state.index].join("-").replace(/[^\w.-]+/g, "_");
  el("a", { href: url, download: `${name}.json` }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
  $("status").textContent = "Saved. Load it with Comparison.load.";
}
function saveButtons() {
  for (const [id, act] of [["copies", copy], ["downloads", download]]) {
    $(id).querySelectorAll("button").forEach((button) => button.remove());
    for (const kernel of D.kernels) $(id).append(el("button", { type: "button", class: id, "data-kernel": kernel, onclick: () => act(kernel) }, KERNELS[kernel][0].toLowerCase()));
  }
}

return { SHOWN, offers, offered, shownKernels, entries, keyOf, pairKey, view, at, behaviours, nameA, nameB, indexWords, whyNot, drawCard, drawPair, drawValues, drawProvenance, saveButtons };
};
