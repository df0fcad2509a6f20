"use strict";
// The zoo's page: views that the address names, drawn from JSON. Every text that came from a file
// becomes a text node or an attribute, never markup.
(async () => {
const { $, KERNELS, INDICES, el, svg, known, fixed, likeness, shorten, plural, inflated, showTip, hideTip, table, panes, radios, check, followTheme, legends } = charts;
const VIEWS = { map: "Map", families: "Families", recommend: "Recommend", upload: "Add", entry: null, pair: null };
const SORTS = { added: "newest first", name: "name", parameters: "parameters", layers: "layers", samples: "samples" };
const COLOURS = 6, PAGE = 100, LABELLED = 40, CHOICES = 500;
let zoo = null, state = {}, turn = 0, entries = new Map(), page = null;

// -- what is asked of the server -------------------------------------------------------------------

async function ask(path, of = {}, times = 3) {
  const query = new URLSearchParams(Object.entries(of).filter(([, value]) => value !== null && value !== undefined && value !== ""));
  const response = await fetch(`/api/${path}${String(query) ? `?${query}` : ""}`, { credentials: "same-origin" });
  if (response.status !== 503 || times < 2) return answer(response);
  await new Promise((done) => setTimeout(done, 2000)); // others are being answered
  return ask(path, of, times - 1);
}
async function answer(response) {
  let found = null;
  try { found = await response.json(); } catch { /* said below */ }
  if (!response.ok) throw new Error(found && typeof found.error === "string" ? found.error : `The server returned status ${response.status}.`);
  return found;
}
const isId = (text) => /^[0-9a-f]{64}$/.test(text || "");

// -- addresses: what is shown stands in them, so that they can be shared ---------------------------

const DEFAULTS = { kernel: "features", sort: "added", show: "both", index: "cka", find: "", tag: "" };
function addressOf(of) {
  const parts = Object.entries(of).filter(([key, value]) => value !== null && value !== undefined && value !== "" && value !== DEFAULTS[key]);
  return `#${new URLSearchParams(parts)}`;
}
function read() {
  const found = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
  const groups = zoo.groups.map((g) => g.group), one = (value, list, other) => (list.includes(value) ? value : other);
  return {
    view: one(found.view, Object.keys(VIEWS), "map"), group: one(found.group, groups, groups[0] || ""), kernel: one(found.kernel, Object.keys(KERNELS), "features"),
    find: (found.find || "").slice(0, 200), tag: (found.tag || "").slice(0, 200), sort: one(found.sort, Object.keys(SORTS), "added"),
    id: isId(found.id) ? found.id : null, a: isId(found.a) ? found.a : null, b: isId(found.b) ? found.b : null, query: isId(found.query) ? found.query : null,
    show: one(found.show, ["both", "product"], "both"), index: one(found.index, Object.keys(INDICES), "cka"),
  };
}
const ADDRESSED = { map: ["group", "kernel", "find", "tag", "sort"], entry: ["id", "kernel"], pair: ["a", "b", "show", "index"], families: ["group"], recommend: ["query"], upload: [] };
const addressed = (of) => addressOf({ view: of.view, ...Object.fromEntries(ADDRESSED[of.view].map((key) => [key, of[key]])) });
function note() { history.replaceState(null, "", addressed(state)); } // a switch within a view is no step back
function go(of) { location.hash = addressed({ ...DEFAULTS, group: state.group, ...of }); }
const linkTo = (of, ...content) => el("a", { href: addressed({ ...DEFAULTS, group: state.group, ...of }) }, ...content);
const linked = (entry) => el("a", { href: addressed({ ...DEFAULTS, group: state.group, view: "entry", id: entry.id }), title: entry.name.length > 60 ? entry.name : null }, entry.name || "unnamed");
const tagged = (tags) => tags.map((tag) => el("a", { class: "tag", href: addressed({ ...DEFAULTS, view: "map", group: state.group, tag }) }, tag));

async function working(act) { // one view's answers at a time: those of a view that was left are dropped
  const mine = ++turn;
  $("problem").hidden = true;
  const slow = setTimeout(() => { if (mine === turn) $("working").hidden = false; }, 250);
  $("main").setAttribute("aria-busy", "true");
  try { await act(() => mine === turn); } catch (error) {
    if (mine === turn) { $("problem").textContent = error.message; $("problem").hidden = false; }
  }
  clearTimeout(slow);
  if (mine !== turn) return;
  $("working").hidden = true;
  $("main").removeAttribute("aria-busy");
  document.documentElement.dataset.ready = addressed(state);
}

// -- numbers and words -----------------------------------------------------------------------------

const counted = (n) => n.toLocaleString("en");
function many(n) {
  if (!known(n)) return "–";
  const [scale, unit] = n >= 1e9 ? [1e9, "G"] : n >= 1e6 ? [1e6, "M"] : n >= 1e3 ? [1e3, "k"] : [1, ""];
  return `${unit ? (n / scale).toPrecision(3) : n}${unit ? ` ${unit}` : ""}`;
}
const sized = (bytes) => (bytes >= 2 ** 20 ? `${(bytes / 2 ** 20).toFixed(1)} MiB` : `${(bytes / 2 ** 10).toFixed(0)} KiB`);
const day = (text) => text.slice(0, 10);
function meter(score, error, high, kernel) {
  const share = (x) => `${100 * Math.min(Math.max(x, 0), 1)}%`;
  return el("span", { class: "bar-cell" },
    el("span", { class: `rule s-${kernel}` }, known(score) ? el("i", { style: `width:${share(score)}` }) : null, known(high) ? el("b", { style: `left:${share(high)}`, title: `95 % chance level ${fixed(high, 2)}` }) : null),
    known(score) ? likeness(score, error) : "undefined");
}
function fill(select, options, value) {
  select.replaceChildren(...options.map(([key, text]) => el("option", { value: key }, text)));
  select.value = value;
}
const groupsOf = () => zoo.groups.map((g) => [g.group, `${g.probe} (${plural(g.count, "network")})`]);

// -- the map ---------------------------------------------------------------------------------------

const SHAPES = [ // around (0, 0), about as large as each other
  (r) => svg("circle", { r }), (r) => svg("rect", { x: -0.9 * r, y: -0.9 * r, width: 1.8 * r, height: 1.8 * r }),
  (r) => svg("path", { d: `M0 ${-1.2 * r}L${1.15 * r} ${0.85 * r}H${-1.15 * r}Z` }), (r) => svg("path", { d: `M0 ${-1.3 * r}L${1.3 * r} 0L0 ${1.3 * r}L${-1.3 * r} 0Z` }),
  (r) => svg("path", { d: `M0 ${1.2 * r}L${1.15 * r} ${-0.85 * r}H${-1.15 * r}Z` }),
  (r) => svg("path", { d: `M${-0.42 * r} ${-1.2 * r}h${0.84 * r}v${0.78 * r}h${0.78 * r}v${0.84 * r}h${-0.78 * r}v${0.78 * r}h${-0.84 * r}v${-0.78 * r}h${-0.78 * r}v${-0.84 * r}h${0.78 * r}Z` }),
];
function shape(place, r) {
  const node = place < 0 ? svg("circle", { r: 0.8 * r }) : SHAPES[place](r);
  node.setAttribute("class", `point t-${place < 0 ? "none" : place}`);
  return node;
}
function coloursOf(points) { // the most frequent tags that tell some points from others
  const counts = new Map();
  for (const { entry } of points) for (const tag of entry.tags) counts.set(tag, (counts.get(tag) || 0) + 1);
  const telling = [...counts].filter(([, n]) => n < points.length || counts.size === 1).sort((p, q) => q[1] - p[1] || (p[0] < q[0] ? -1 : 1));
  const tags = telling.slice(0, COLOURS).map(([tag]) => tag);
  // of several tags, the rarest says most
  return { tags, counts, of: (entry) => tags.findLastIndex((tag) => entry.tags.includes(tag)) };
}
const isBase = (entry) => entry.tags.includes("base");
const matches = (entry) => {
  const text = [entry.name, entry.probe, entry.id, ...entry.tags].join("\n").toLowerCase();
  return (!state.tag || entry.tags.includes(state.tag)) && state.find.toLowerCase().split(/\s+/).every((word) => text.includes(word));
};
function drawMap(found) {
  const points = found.points.flatMap((p) => (entries.has(p.id) ? [{ ...p, entry: entries.get(p.id) }] : []));
  const colours = coloursOf(points), host = $("map");
  const part = found.left_out ? ` ${counted(found.left_out)} more are not drawn.` : "";
  const like = points.length > 1 ? `. Distance shows how much their ${state.kernel} differ; the plane explains ${Math.round(100 * found.share)} % of the variance.${part} Overlapping points are moved apart. Select a point to open its network.` : ".";
  $("map-gloss").textContent = points.length
    ? `${plural(points.length, "network")} on ${points.length > 1 ? "the same" : "these"} samples${like}`
    : `No network in this group was recorded with ${state.kernel}.`;
  $("map-figure").hidden = !points.length;
  const [xs, ys] = [points.map((p) => p.x), points.map((p) => p.y)];
  const mid = (v) => (Math.min(...v) + Math.max(...v)) / 2, span = (v) => Math.max(...v) - Math.min(...v) || 1e-9;
  const first = points.find((p) => isBase(p.entry)), camera = { k: 1, x: mid(xs), y: mid(ys) };
  let shown = []; // what is drawn: points, where, and how far apart a unit of the plane is
  const zoom = (by, at) => { // around a place of the plane, which stays where it is
    const k = Math.min(Math.max(camera.k * by, 1), 4096), share = camera.k / k;
    const [x, y] = k === 1 ? [mid(xs), mid(ys)] : [at.x + (camera.x - at.x) * share, at.y + (camera.y - at.y) * share];
    Object.assign(camera, { k, x, y });
    host.draw();
  };
  const focused = () => { const id = document.activeElement && document.activeElement.dataset.id; return points.find((p) => p.id === id); };
  host.zoom = (by) => { // around the focused point, the base where nothing was zoomed yet, or the middle
    const at = focused() || (camera.k === 1 && first) || camera;
    if (camera.k === 1 && by > 1) Object.assign(camera, { x: at.x, y: at.y });
    zoom(by, { x: at.x, y: at.y });
  };
  host.draw = () => {
    const W = Math.max(host.clientWidth || 600, 260), H = Math.round(Math.min(560, Math.max(300, W * 0.56))), pad = 34, r = points.length > 400 ? 3.5 : points.length > 60 ? 5 : 6.5;
    const scale = camera.k * Math.min((W - 2 * pad) / span(xs), (H - 2 * pad) / span(ys), 1e6); // one for both, as distances count
    const place_ = (p) => [W / 2 + (p.x - camera.x) * scale, H / 2 - (p.y - camera.y) * scale];
    const inside = ([x, y]) => x > -r && y > -r && x < W + r && y < H + r;
    const drawn = points.filter((p) => inside(place_(p))), at = drawn.map(place_), held = focused();
    shown = { W, H, scale };
    apart(at, 1.7 * r, [r, r, W - r, H - r]);
    const start = Math.max(drawn.indexOf(held), 0);
    const nodes = drawn.map((p, i) => {
      const node = shape(colours.of(p.entry), r);
      if (isBase(p.entry)) node.classList.add("base");
      node.setAttribute("transform", `translate(${at[i][0].toFixed(1)} ${at[i][1].toFixed(1)})`);
      for (const [key, value] of Object.entries({ role: "link", tabindex: i === start ? 0 : -1, "aria-label": `${p.entry.name || "unnamed"}${isBase(p.entry) ? ", base" : ""}`, "data-id": p.id })) node.setAttribute(key, value);
      node.classList.toggle("faded", !matches(p.entry));
      return node;
    });
    const labels = labelled(drawn, at, W, H, r);
    const picture = svg("svg", { viewBox: `0 0 ${W} ${H}`, width: W, height: H, role: "group", "aria-label": `Map of ${plural(points.length, "network")}`, class: camera.k > 1 ? "zoomed" : null }, ...nodes, ...labels);
    const place = (event) => nodes.indexOf(event.target);
    const told = (i) => showTip(nodes[i], [el("span", {}, drawn[i].entry.name), el("b", {}, drawn[i].entry.tags.join(", ") || "no tag"), el("small", {}, `${plural(drawn[i].entry.layers, "layer")}, ${many(drawn[i].entry.parameters)} parameters`)]);
    const on = (type, act) => picture.addEventListener(type, (event) => { const i = place(event); if (i >= 0) act(i, event); });
    on("mouseover", told); on("focusin", told); on("mouseout", hideTip); on("focusout", hideTip);
    on("click", (i) => { if (!host.dragged) go({ view: "entry", id: drawn[i].id }); });
    on("keydown", (i, event) => {
      if (event.key === "Enter") { go({ view: "entry", id: drawn[i].id }); return; }
      const by = { "+": 2, "=": 2, "-": 0.5, 0: 1e-9 }[event.key];
      if (by && !event.ctrlKey && !event.metaKey) { event.preventDefault(); host.zoom(by); return; }
      const way = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
      if (!way) return;
      event.preventDefault();
      const far = (j) => { // how far along that way, and how far aside
        const [dx, dy] = [at[j][0] - at[i][0], at[j][1] - at[i][1]], along = dx * way[0] + dy * way[1], aside = Math.abs(dx * way[1]) + Math.abs(dy * way[0]);
        return j !== i && (along > 0.5 || (along > -0.5 && aside < 1 && j > i)) ? along + 2 * aside : Infinity;
      };
      const next = at.map((_, j) => j).reduce((best, j) => (far(j) < far(best) ? j : best), i);
      nodes[i].setAttribute("tabindex", -1); nodes[next].setAttribute("tabindex", 0); nodes[next].focus();
    });
    host.replaceChildren(picture);
    if (held && drawn.includes(held)) nodes[start].focus({ preventScroll: true });
    for (const button of $("map-zoom").querySelectorAll("button")) button.disabled = button.dataset.by !== "2" && camera.k === 1;
  };
  const under = (event) => { // the place of the plane under the pointer
    const box = host.getBoundingClientRect();
    return { x: camera.x + (event.clientX - box.left - shown.W / 2) / shown.scale, y: camera.y - (event.clientY - box.top - shown.H / 2) / shown.scale };
  };
  host.onwheel = (event) => { // with Ctrl, or by a pinch; alone it scrolls the page
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    zoom(2 ** (-event.deltaY / 200), under(event));
  };
  host.ondblclick = (event) => zoom(event.shiftKey ? 0.5 : 2, under(event));
  host.onpointerdown = (event) => {
    host.dragged = false;
    if (camera.k === 1 || event.button) return;
    const from = { ...camera }, [x, y] = [event.clientX, event.clientY];
    host.onpointermove = (now) => {
      if (!host.dragged && Math.hypot(now.clientX - x, now.clientY - y) < 4) return;
      host.dragged = true;
      Object.assign(camera, { x: from.x - (now.clientX - x) / shown.scale, y: from.y + (now.clientY - y) / shown.scale });
      host.draw();
    };
  };
  host.onpointerup = host.onpointerleave = () => { host.onpointermove = null; };
  if (points.length) host.draw(); else host.replaceChildren();
  const key = (tag, place, count) => el("button", { type: "button", "aria-pressed": String(state.tag === tag), title: `only ${tag}`, onclick: () => { state.tag = state.tag === tag ? "" : tag; note(); refreshList(); } },
    svg("svg", { viewBox: "-9 -9 18 18", "aria-hidden": "true" }, shape(place, 6)), `${shorten(tag, 28)} ${counted(count)}`);
  const others = points.filter((p) => colours.of(p.entry) < 0).length;
  $("map-keys").replaceChildren(...colours.tags.map((tag, i) => key(tag, i, colours.counts.get(tag))),
    ...(others ? [el("span", {}, svg("svg", { viewBox: "-9 -9 18 18", "aria-hidden": "true" }, shape(-1, 6)), ` ${colours.tags.length ? "others" : "without a tag"} ${counted(others)}`)] : []));
}
function apart(at, least, [left, top, right, bottom]) { // in place: copies lie on one spot, and would hide each other
  if (at.length > 400) return;
  for (let round = 0; round < 24; round++) {
    let moved = false;
    for (let i = 0; i < at.length; i++) for (let j = 0; j < i; j++) {
      let dx = at[i][0] - at[j][0], dy = at[i][1] - at[j][1], d = Math.hypot(dx, dy);
      if (d >= least) continue;
      if (d < 1e-3) [dx, dy, d] = [Math.cos(2.4 * i), Math.sin(2.4 * i), 1]; // some way, the same each time
      const push = (least - Math.min(d, least)) / 2 + 0.05, to = [(dx / d) * push, (dy / d) * push];
      for (const k of [0, 1]) { at[i][k] += to[k]; at[j][k] -= to[k]; }
      moved = true;
    }
    if (!moved) break;
  }
  for (const p of at) { p[0] = Math.min(Math.max(p[0], left), right); p[1] = Math.min(Math.max(p[1], top), bottom); }
}
const pen = document.createElement("canvas").getContext("2d"); // which knows how wide words are
function labelled(points, at, W, H, r) { // names where there is room for them
  pen.font = `11.5px ${getComputedStyle(document.body).fontFamily}`;
  const taken = at.map(([x, y]) => [x - r, y - r, x + r, y + r]), out = [];
  const order = points.map((_, i) => i).filter((i) => matches(points[i].entry)).sort((i, j) => isBase(points[j].entry) - isBase(points[i].entry)).slice(0, 400);
  const free = (box) => box[0] > 4 && box[2] < W - 4 && box[1] > 2 && box[3] < H - 2 && !taken.some((t) => box[0] < t[2] && box[2] > t[0] && box[1] < t[3] && box[3] > t[1]);
  for (const i of order) {
    if (out.length >= LABELLED) break;
    const words = shorten(points[i].entry.name, 24), wide = pen.measureText(words).width, [x, y] = at[i];
    const tries = [[x + r + 4, y + 4, "start"], [x - r - 4, y + 4, "end"], [x, y - r - 5, "middle"], [x, y + r + 13, "middle"]];
    const boxed = tries.map(([tx, ty, anchor]) => {
      const left = anchor === "start" ? tx : anchor === "end" ? tx - wide : tx - wide / 2;
      return { tx, ty, anchor, box: [left, ty - 11, left + wide, ty + 3] };
    });
    const where = boxed.find(({ box }) => free(box)) || (isBase(points[i].entry) ? boxed.find(({ box }) => box[0] > 4 && box[2] < W - 4) : null);
    if (!where) continue;
    taken.push(where.box);
    out.push(svg("text", { x: where.tx, y: where.ty, "text-anchor": where.anchor, class: isBase(points[i].entry) ? "base" : null }, words));
  }
  return out;
}

// -- the list --------------------------------------------------------------------------------------

let listed = [], total = 0, wait = 0;
function drawList() {
  table($("list"), ["Network", "Tags", "Layers", "Parameters", "Samples", "Added"], listed.map((entry) => [
    linked(entry), el("span", {}, ...tagged(entry.tags)), counted(entry.layers), many(entry.parameters), counted(entry.samples), day(entry.added),
  ]), [2]);
  $("list").hidden = !total;
  $("found").textContent = total ? `${counted(total)} of ${plural(zoo.entries, "network")}` : "No network matches.";
  $("more").hidden = listed.length >= total;
}
const search = (offset = 0) => ask("entries", { find: state.find, tag: state.tag, sort: state.sort, offset, limit: PAGE });
async function refreshList() { // the list and what is faded on the map, as someone types
  const mine = ++wait;
  try {
    const found = await search();
    if (mine !== wait || state.view !== "map") return;
    [listed, total] = [found.entries, found.total];
    drawList();
  } catch (error) { $("found").textContent = error.message; }
  document.querySelectorAll("#map-keys button").forEach((button) => button.setAttribute("aria-pressed", String(button.title === `only ${state.tag}`)));
  $("tag").value = state.tag;
  if ($("map").draw && !$("map-figure").hidden) $("map").draw();
}
async function showMap() {
  $("find").value = state.find;
  const tags = zoo.tags.map((t) => [t.tag, `${t.tag} (${counted(t.count)})`]);
  if (state.tag && !tags.some(([tag]) => tag === state.tag)) tags.push([state.tag, state.tag]); // of very many, the most frequent are listed
  fill($("tag"), [["", "any"], ...tags], state.tag);
  fill($("sort"), Object.entries(SORTS), state.sort);
  fill($("group"), groupsOf(), state.group);
  check("map-kernel", state.kernel);
  await working(async (still) => {
    const [found, map, there] = await Promise.all([search(), state.group ? ask("map", { group: state.group, kernel: state.kernel }) : { points: [], share: 1, left_out: 0 }, state.group ? ask("entries", { group: state.group, limit: 5000 }) : { entries: [] }]);
    if (!still()) return;
    entries = new Map(there.entries.map((entry) => [entry.id, entry]));
    [listed, total] = [found.entries, found.total];
    drawMap(map);
    drawList();
  });
}

// -- one network -----------------------------------------------------------------------------------

const NOBODY = "No other recording here was made on the same samples with the same settings.";
function drawNearest(target, words, found, own) {
  words.textContent = `${found.looked_at ? found.words : NOBODY}${leftOut(found)}${found.matches.length ? " The mark on each bar is the 95 % chance level." : ""}`;
  target.hidden = !found.matches.length;
  const share = (x) => (known(x) ? `${(100 * x).toFixed(x > 0 && x < 0.0995 ? 1 : 0)} %` : "–");
  table(target, ["Network", "Score ± error", "Different predictions", "Compare", "Tags"], found.matches.map((m) => [
    linked(m.entry), el("span", { title: m.above_chance ? null : "not above chance" }, meter(m.score, m.stderr, m.chance_high, found.kernel), m.above_chance ? "" : el("small", {}, " not above chance"), m.doubtful ? el("small", { title: "a few samples dominate; its error may be too small" }, " ⚠") : ""),
    share(m.disagreement), linkTo({ view: "pair", a: own, b: m.entry.id }, "compare"), el("span", {}, ...tagged(m.entry.tags)),
  ]), [9]);
}
function leftOut(found) {
  const parts = Object.entries(found.left_out).filter(([why]) => why !== "the query itself").map(([why, count]) => `${counted(count)} ${why}`);
  return parts.length ? ` Skipped: ${parts.join(", ")}.` : "";
}
async function showEntry() {
  const id = state.id;
  check("near-kernel", state.kernel);
  $("entry-body").hidden = true;
  $("entry-title").textContent = "A network";
  for (const target of ["nearest", "relatives"]) $(target).replaceChildren();
  for (const target of ["nearest-words", "relatives-words"]) $(target).textContent = "";
  await working(async (still) => {
    if (!id) throw new Error("The URL names no network.");
    const entry = await ask(`entries/${id}`);
    if (!still()) return;
    drawEntry(entry);
    const others = await ask("entries", { group: entry.group, sort: "name", limit: CHOICES });
    if (!still()) return;
    fill($("other"), [["", "choose a network"], ...others.entries.filter((x) => x.id !== id).map((x) => [x.id, x.name])], "");
    await Promise.allSettled([nearestOf(id, still), relativesOf(entry, still)]);
  });
}
function drawEntry(entry) {
  document.title = `${entry.name} · ${zoo.name}`;
  $("entry-body").hidden = false;
  $("entry-title").textContent = entry.name || "unnamed";
  $("entry-tags").replaceChildren(...tagged(entry.tags));
  const facts = {
    probe: entry.probe, layers: counted(entry.layers.length), kernels: entry.kinds.join(", "), classes: known(entry.classes) ? counted(entry.classes) : null,
    parameters: known(entry.parameters) ? counted(entry.parameters) : null, added: `${day(entry.added)}, ${entry.added.slice(11, 16)} UTC`, file: sized(entry.size),
    address: entry.address, id: entry.id.slice(0, 16), weights: entry.weights && entry.weights.slice(0, 16),
  };
  const trained = !entry.trained_on ? null : entry.trained_on_name === null ? el("code", {}, entry.trained_on.slice(0, 16)) : linkTo({ view: "entry", id: entry.trained_on }, entry.trained_on_name);
  $("entry-facts").replaceChildren(
    ...Object.entries(facts).filter(([, value]) => known(value)).map(([key, value]) => el("div", {}, el("dt", {}, key), el("dd", {}, /^(id|weights|address)$/.test(key) ? el("code", {}, value) : value))),
    ...(trained ? [el("div", {}, el("dt", {}, "training data, recorded with a reference model"), el("dd", {}, trained))] : []));
  $("entry-layers").replaceChildren(...entry.layers.map((name) => el("li", {}, name)));
}
async function nearestOf(id, still) {
  try {
    const found = await ask(`entries/${id}/nearest`, { kernel: state.kernel });
    if (!still()) return;
    drawNearest($("nearest"), $("nearest-words"), found, id);
  } catch (error) { if (still()) { $("nearest-words").textContent = error.message; $("nearest").replaceChildren(); } }
}
async function relativesOf(entry, still) {
  try {
    const found = await ask(`entries/${entry.id}/relatives`);
    if (still()) drawRelatives(found, entry);
  } catch (error) { if (still()) $("relatives-words").textContent = error.message; }
}
function drawRelatives(found, entry) {
  $("relatives-words").textContent = `${found.looked_at ? found.words : NOBODY}${leftOut(found)}${found.partial.map((x) => ` ${x.summary}`).join("")}`;
  if (!found.relatives.length) { $("relatives").replaceChildren(); return; }
  table($("relatives"), ["Network", "Drift, dB", "Compare", "Evidence", "Tags"], found.relatives.map((x) => [
    linked(x.entry), el("span", { title: x.summary }, known(x.decibels) ? fixed(x.decibels, 1) : x.shown_by === "noise" ? "–" : "unchanged"),
    linkTo({ view: "pair", a: entry.id, b: x.entry.id }, "compare"), x.shown_by, el("span", {}, ...tagged(x.entry.tags)),
  ]), [9]);
}

// -- a pair, as on the report's page ----------------------------------------------------------------

async function showPair() {
  $("pair-page").hidden = true;
  await working(async (still) => {
    if (!("DecompressionStream" in window)) throw new Error("This browser cannot decompress the data of this page. Use a browser from 2023 or later.");
    if (!state.a || !state.b) throw new Error("The URL names no pair of networks.");
    const [first, second] = await Promise.all([ask(`entries/${state.a}`), state.b === state.a ? null : ask(`entries/${state.b}`)]);
    const choices = await ask("entries", { group: first.group, sort: "name", limit: CHOICES });
    if (!still()) return;
    const options = new Map([...choices.entries, first, second || first].map((x) => [x.id, x.name]));
    for (const [target, id] of [["row", state.a], ["column", state.b]]) fill($(target), [...options], id);
    const found = await ask("pair", { a: state.a, b: state.b });
    const bytes = new Uint8Array(await (await inflated(found.numbers)).arrayBuffer());
    if (!still()) return;
    const own = { a: found.ids.indexOf(state.a), b: found.ids.indexOf(state.b), show: state.show, index: state.index };
    page = { D: found.content, own, pairs: pairsOf(found.content, bytes, own) };
    document.title = `${page.pairs.nameA()} and ${page.pairs.nameB()} · ${zoo.name}`;
    const { offers, SHOWN } = page.pairs, D = page.D;
    const set = (key) => (value) => { page.own[key] = state[key] = value; note(); drawThePair(); };
    for (const [target, name, some] of [["kernels", "show", offers], ["indices", "index", D.indices.map((i) => [i, INDICES[i]])]]) {
      $(target).querySelectorAll("label").forEach((label) => label.remove());
      radios($(target), name, some, { choose: set(name), title: name === "show" ? (show) => SHOWN[show].map((kernel) => KERNELS[kernel][1]).join(" ") : null });
      $(target).hidden = some.length < 2;
    }
    for (const target of ["shared", "differing"]) $(target).replaceChildren();
    $("pair-page").hidden = false;
    page.pairs.drawProvenance();
    page.pairs.saveButtons();
    drawThePair();
  });
}
function drawThePair() {
  Object.assign(state, { show: page.own.show, index: page.own.index });
  check("show", state.show);
  check("index", state.index);
  page.pairs.drawCard();
  page.pairs.drawPair();
}

// -- families --------------------------------------------------------------------------------------

async function showFamilies() {
  fill($("family-group"), groupsOf(), state.group);
  for (const target of ["families", "families-alone"]) $(target).replaceChildren();
  $("families-words").textContent = "";
  await working(async (still) => {
    if (!state.group) return;
    const found = await ask("families", { group: state.group });
    if (still()) drawFamilies(found);
  });
}
function drawFamilies(found) {
  const under = new Map();
  found.members.forEach((m, i) => { under.set(m.parent, [...(under.get(m.parent) || []), i]); });
  const roots = under.get(null) || [], alone = roots.filter((i) => !under.has(i));
  const moved = (m) => (m.parent === null ? null : el("span", { class: "how" }, m.words));
  const compared = (m) => (m.parent === null ? null : el("span", { class: "how" }, linkTo({ view: "pair", a: found.members[m.parent].entry.id, b: m.entry.id }, "compare")));
  const branch = (i) => {
    const m = found.members[i], children = under.get(i) || [];
    return el("li", {}, linked(m.entry), moved(m), compared(m), " ", ...tagged(m.entry.tags), children.length ? el("ul", {}, ...children.map(branch)) : null);
  };
  $("families-words").textContent = found.note;
  $("families").replaceChildren(...roots.filter((i) => under.has(i)).map(branch));
  const lost = Object.entries(found.left_out).map(([why, count]) => ` Skipped: ${counted(count)} ${why}.`).join("");
  $("families-alone").replaceChildren(...(alone.length ? [`Without relatives: `, ...alone.flatMap((i, k) => [k ? ", " : "", linked(found.members[i].entry)]), "."] : []), lost);
}

// -- recommendations ---------------------------------------------------------------------------------

async function showRecommend() {
  $("recommend-body").hidden = true;
  await working(async (still) => {
    const choices = await ask("entries", { sort: "added", limit: CHOICES });
    const own = state.query && !choices.entries.some((x) => x.id === state.query) ? [await ask(`entries/${state.query}`)] : [];
    if (!still()) return;
    fill($("query"), [["", "choose a recording"], ...[...own, ...choices.entries].map((x) => [x.id, `${x.name} · ${x.probe}`])], state.query || "");
    if (!state.query) return;
    const found = await ask("recommend", { query: state.query });
    if (still()) drawRecommend(found);
  });
}
function drawRecommend(found) {
  $("recommend-body").hidden = false;
  const skipped = found.skipped.map((s) => ` Skipped ${counted(s.count)}: ${s.why}.`).join("");
  $("by-data-words").textContent = found.linked
    ? `Distance between the training data of each linked network and this data, in the features of the reference network (0: identical).${skipped}`
    : "No network here is linked to a recording of its training data. Link them with Zoo.add(..., trained_on=...) or resemblance zoo add --trained-on.";
  if (found.by_data.length) table($("by-data"), ["Network", "Distance of training data", "Tags", "Parameters"], found.by_data.map((x) => [linked(x.entry), fixed(x.distance), el("span", {}, ...tagged(x.entry.tags)), many(x.entry.parameters)]), [3]);
  else $("by-data").replaceChildren();
  if (found.alike) drawNearest($("alike"), $("alike-words"), found.alike, found.query.id);
  else { $("alike-words").textContent = found.alike_why; $("alike").replaceChildren(); }
}

// -- upload ------------------------------------------------------------------------------------------

async function showUpload() {
  $("upload-status").textContent = "";
  $("upload-gloss").textContent = zoo.read_only ? "This zoo is served read-only." : `A recording (.rsm) of at most ${sized(zoo.upload_limit)}. It is read as data; no code in it is run.`;
  $("upload").hidden = zoo.read_only;
  await working(async () => {});
}
async function send() {
  const file = $("file").files[0], status = $("upload-status");
  if (!file) { status.textContent = "Choose a file first."; return; }
  if (file.size > zoo.upload_limit) { status.textContent = `The file is ${sized(file.size)}; the limit is ${sized(zoo.upload_limit)}.`; return; }
  $("send").disabled = true;
  status.textContent = "Uploading …";
  const query = new URLSearchParams($("upload-tags").value.split(",").map((tag) => tag.trim()).filter(Boolean).map((tag) => ["tag", tag]));
  try {
    const found = await answer(await fetch(`/api/recordings?${query}`, { method: "POST", body: file, headers: { "content-type": "application/octet-stream" }, credentials: "same-origin" }));
    zoo = await ask("zoo");
    heading();
    status.replaceChildren("Added ", linked(found), ". ", linkTo({ view: "recommend", query: found.id }, "Recommend for its data"));
  } catch (error) { status.textContent = `Not added: ${error.message}`; }
  $("send").disabled = false;
  document.documentElement.dataset.sent = String(Date.now());
}

// -- views -------------------------------------------------------------------------------------------

const SHOW = { map: showMap, entry: showEntry, pair: showPair, families: showFamilies, recommend: showRecommend, upload: showUpload };
function heading() {
  $("title").textContent = zoo.name;
  $("summary").textContent = zoo.entries ? `${plural(zoo.entries, "recording")} on ${plural(zoo.groups.length, "sample set")}.` : "No recordings yet.";
  $("damaged").textContent = zoo.damaged ? `${zoo.damaged}.` : "";
  $("damaged").hidden = !zoo.damaged;
  $("made").textContent = `Served by resemblance ${zoo.version}${zoo.read_only ? ", read-only" : ""}.`;
}
async function show() {
  hideTip();
  delete document.documentElement.dataset.ready;
  try { zoo = await ask("zoo"); } catch (error) { // others may have added to it
    $("problem").textContent = zoo ? error.message : `This zoo cannot be shown: ${error.message}`;
    $("problem").hidden = false;
    document.documentElement.dataset.ready = "no";
    return;
  }
  heading();
  const left = state;
  state = read();
  document.title = zoo.name;
  const empty = !zoo.entries && state.view !== "upload";
  $("empty").hidden = !empty;
  $("empty-here").hidden = zoo.read_only;
  for (const section of document.querySelectorAll("[data-view]")) section.hidden = empty || section.dataset.view !== state.view;
  const offered = Object.entries(VIEWS).filter(([view, name]) => name && !(view === "upload" && zoo.read_only));
  $("views").replaceChildren(...offered.map(([view, name]) => el("a", { href: addressed({ ...DEFAULTS, view, group: state.group }), "aria-current": view === state.view ? "page" : null }, name)));
  if (left.view && (left.view !== state.view || left.id !== state.id)) { // whoever followed a link begins at the head
    scrollTo({ top: 0, behavior: "instant" });
    $("main").focus({ preventScroll: true });
  }
  if (empty) await working(async () => {});
  else await SHOW[state.view]();
}
followTheme();
legends();
for (const button of $("map-zoom").querySelectorAll("button")) button.addEventListener("click", () => $("map").zoom(Number(button.dataset.by)));
for (const form of document.querySelectorAll("form")) form.addEventListener("submit", (event) => event.preventDefault());
const kernels = Object.entries(KERNELS).map(([kernel, [name]]) => [kernel, name]);
radios($("map-kernels"), "map-kernel", kernels, { choose: (kernel) => { state.kernel = kernel; note(); showMap(); } });
radios($("near-kernels"), "near-kernel", kernels, { choose: (kernel) => { state.kernel = kernel; note(); working((still) => nearestOf(state.id, still)); } });
$("group").addEventListener("change", () => { state.group = $("group").value; note(); showMap(); });
$("family-group").addEventListener("change", () => { state.group = $("family-group").value; note(); showFamilies(); });
let typing = 0;
$("find").addEventListener("input", () => { state.find = $("find").value; note(); clearTimeout(typing); typing = setTimeout(refreshList, 120); });
$("tag").addEventListener("change", () => { state.tag = $("tag").value; note(); refreshList(); });
$("sort").addEventListener("change", () => { state.sort = $("sort").value; note(); refreshList(); });
$("more").addEventListener("click", () => working(async (still) => {
  const found = await search(listed.length);
  if (!still()) return;
  [listed, total] = [[...listed, ...found.entries], found.total];
  drawList();
}));
$("skip").addEventListener("click", (event) => { event.preventDefault(); $("main").focus(); }); // its address would be that of a view
$("other").addEventListener("change", () => { if ($("other").value) go({ view: "pair", a: state.id, b: $("other").value }); });
$("to-recommend").addEventListener("click", () => go({ view: "recommend", query: state.id }));
$("query").addEventListener("change", () => go({ view: "recommend", query: $("query").value }));
for (const [target, key] of [["row", "a"], ["column", "b"]]) $(target).addEventListener("change", () => go({ ...state, [key]: $(target).value }));
$("swap").addEventListener("click", () => go({ ...state, a: state.b, b: state.a }));
$("values-box").addEventListener("toggle", () => { if (page) page.pairs.drawValues(); });
$("upload").addEventListener("submit", send);
function refit() {
  hideTip();
  for (const { host, figure } of panes.values()) if (host.fit && figure.offsetParent) host.fit();
  for (const id of ["curve", "map"]) if ($(id).draw && $(id).offsetParent) $(id).draw();
}
let frame = 0;
addEventListener("resize", () => { cancelAnimationFrame(frame); frame = requestAnimationFrame(refit); });
for (const type of ["beforeprint", "afterprint"]) addEventListener(type, refit);
addEventListener("hashchange", show);
await show();
})();
