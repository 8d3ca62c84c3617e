"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
let group = data.groups[0];
let view = null; // [from, to] of the timeline in nanoseconds
let sorting = { key: null, down: true };
let tab = "kernels";

// -- small things ---------------------------------------------------------------------------

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children.filter((child) => child !== null));
  return made;
}
function shape(name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}
function digits(value) {
  return value >= 1000 ? Math.round(value).toLocaleString("en") :
    value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) :
      value >= 1 || value === 0 ? value.toFixed(2) : Number(value.toPrecision(2)).toString();
}
function time(ns) { // [number, unit]
  const a = Math.abs(ns);
  return a >= 1e9 ? [digits(ns / 1e9), "s"] : a >= 1e6 ? [digits(ns / 1e6), "ms"] :
    [digits(ns / 1e3), "\u00b5s"];
}
const timeText = (ns) => time(ns).join(" ");
const rate = (perSecond, unit) => perSecond === null || perSecond === undefined ? "" :
  `${digits(perSecond / 1e9)} ${unit}`;
const percent = (part) => part === null || part === undefined ? "" : `${(part * 100).toFixed(1)} %`;
const short = (label) => label.split("/").pop();

// Colours: the kernels that take most of the time have one each, the others share grey.
function colours() {
  const found = new Map();
  group.kernels.forEach((k, i) => found.set(k.kernel, i < 8 ? `var(--k${i})` : "var(--other)"));
  return found;
}

// -- head and totals ------------------------------------------------------------------------

function drawHead() {
  $("method").textContent = data.method || group.method;
  const scalars = Object.entries(data.scalars || {}).map(([k, v]) => `${k} = ${v}`).join(", ");
  $("subject").textContent = [data.file, scalars, data.device.adapter].filter(Boolean).join(" \u00b7 ");
  if (data.groups.length > 1) {
    $("group-label").hidden = false;
    data.groups.forEach((g, i) => $("group").append(element("option", { value: i },
      `${g.method} ${g.routes.join(", ") || i} (${g.steps})`)));
    $("group").onchange = (event) => { group = data.groups[event.target.value]; view = null; draw(); };
  }
}
function drawTiles() {
  const t = group.totals;
  const overhead = data.profiling_overhead_s;
  const tiles = [
    ["on the GPU, p50", t.span_ns.p50, `${timeText(t.span_ns.min)} to p95 ${timeText(t.span_ns.p95)}`],
    ["sum of dispatches", t.sum_ns.p50, `${group.dispatches.length} dispatches`],
    ["gaps between them", t.gap_ns.p50, percent(t.span_ns.p50 ? t.gap_ns.p50 / t.span_ns.p50 : 0)],
    ["copies of outputs", t.copies_ns.p50, group.copies.length === 1 ? "1 copy" : `${group.copies.length} copies`],
    ["profiled step on the host", t.wall_ns.p50, `p95 ${timeText(t.wall_ns.p95)}`],
  ];
  if (data.execute_s) tiles.push(["execute without profiling", data.execute_s.p50 * 1e9,
    overhead ? `profiling adds ${timeText(overhead.p50 * 1e9)}` : ""]);
  $("tiles").replaceChildren(...tiles.map(([name, ns, more]) => {
    const [number, unit] = time(ns);
    return element("div", { class: "tile" }, element("div", { class: "name" }, name),
      element("div", { class: "value" }, number, element("span", { class: "unit" }, unit)),
      element("div", { class: "name" }, more));
  }));
  const meaning = { zero: "a timestamp was not written", pinned: "begin not credible, counted from the end before",
    out_of_order: "timestamps out of order", overlap: "ran beside an earlier one" };
  const notes = [`${group.steps} measured steps` + (group.warmup.steps ?
    `, ${group.warmup.steps} before them as warm-up (mean ${timeText(group.warmup.span_ns)} on the GPU)` : "")];
  for (const [flag, n] of Object.entries(group.flags)) notes.push(`${n} dispatches flagged ${flag}: ${meaning[flag] || flag}`);
  $("notes").replaceChildren(...notes.map((note) => element("li", {}, note)));
}

// -- timeline -------------------------------------------------------------------------------

function slices() {
  const offset = group.timeline.gpu_offset_ns;
  const found = group.timeline.host.map((p) => ({ row: "host", name: p.name, from: p.start_ns,
    to: p.end_ns, colour: p.name === "wait" ? "var(--wait)" : "var(--host)", host: true }));
  const palette = colours();
  const reach = [];
  for (const d of [...group.dispatches, ...group.copies]) {
    const from = d.start_ns + offset, to = d.end_ns + offset;
    let lane = reach.findIndex((end) => end <= from + 1e-6);
    if (lane < 0) lane = reach.push(0) - 1;
    reach[lane] = to;
    found.push({ row: lane ? `GPU ${lane + 1}` : "GPU", name: short(d.label), from, to, pass: d,
      colour: palette.get(d.kernel) || "var(--other)" });
  }
  const modules = new Map();
  for (const d of group.dispatches) {
    const path = d.module.replace(/^(.*?\.\d+)(\..*)?$/, "$1") || "(model)";
    const last = modules.get("last");
    if (last && last.name === path) last.to = d.end_ns + offset;
    else {
      const made = { row: "layer", name: path, from: d.start_ns + offset, to: d.end_ns + offset,
        colour: "var(--track)", host: true };
      found.push(made);
      modules.set("last", made);
    }
  }
  return found;
}
function drawTimeline() {
  const all = slices();
  const whole = [Math.min(...all.map((s) => s.from)), Math.max(...all.map((s) => s.to))];
  const [from, to] = view || whole;
  const box = $("timeline"), width = Math.max(320, box.clientWidth), left = 46, rowHeight = 26;
  const rows = ["host", "layer", ...new Set(all.map((s) => s.row).filter((r) => r.startsWith("GPU")))];
  const height = rows.length * rowHeight + 26;
  const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img",
    "aria-label": "timeline of one step" });
  const x = (ns) => left + (ns - from) / (to - from || 1) * (width - left - 8);
  const span = to - from;
  let tick = 10 ** Math.floor(Math.log10(span / 4 || 1));
  for (const factor of [5, 2]) if (span / (tick * factor) >= 4) { tick *= factor; break; }
  for (let at = Math.ceil((from - whole[0]) / tick) * tick; at <= to - whole[0]; at += tick) {
    const px = x(at + whole[0]);
    svg.append(shape("line", { class: "grid", x1: px, x2: px, y1: 0, y2: height - 18 }),
      shape("text", { x: px, y: height - 5, "text-anchor": "middle" }, at ? timeText(at) : "0"));
  }
  rows.forEach((row, i) => svg.append(shape("text", { x: 0, y: i * rowHeight + 17 }, row)));
  const clip = shape("clipPath", { id: "clip" });
  clip.append(shape("rect", { x: left, y: 0, width: width - left, height }));
  const plot = shape("g", { "clip-path": "url(#clip)" });
  svg.append(clip, plot);
  for (const s of all) {
    if (s.to < from || s.from > to) continue;
    const y = rows.indexOf(s.row) * rowHeight + 3, x0 = x(s.from), w = Math.max(.7, x(s.to) - x0 - .4);
    const flagged = s.pass && Object.keys(s.pass.flags).length ? " flagged" : "";
    const rect = shape("rect", { class: `slice${flagged}`, x: x0, y, width: w, height: rowHeight - 6, rx: 2,
      style: `fill:${s.colour}` });
    rect.addEventListener("pointermove", (event) => showTip(event, s));
    rect.addEventListener("pointerleave", hideTip);
    plot.append(rect);
    const start = Math.max(x0, left), room = Math.min(x0 + w, width) - start;
    if (room > s.name.length * 6.7 + 8)
      plot.append(shape("text", { class: s.host ? "inside" : "on-bar", x: start + 4, y: y + 14 }, s.name));
  }
  zoomByDragging(svg, left, width, from, to);
  box.replaceChildren(svg);
}
function zoomByDragging(svg, left, width, from, to) {
  const at = (event) => {
    const box = svg.getBoundingClientRect();
    const px = (event.clientX - box.left) / box.width * width;
    return from + Math.min(1, Math.max(0, (px - left) / (width - left - 8))) * (to - from);
  };
  let begin = null, mark = null;
  svg.addEventListener("pointerdown", (event) => { begin = at(event); });
  svg.addEventListener("pointermove", (event) => {
    if (begin === null) return;
    const [a, b] = [begin, at(event)].sort((p, q) => p - q);
    const x = (ns) => left + (ns - from) / (to - from) * (width - left - 8);
    if (!mark) { mark = shape("rect", { y: 0, height: "100%", style: "fill:var(--select)" }); svg.append(mark); }
    mark.setAttribute("x", x(a));
    mark.setAttribute("width", x(b) - x(a));
  });
  const finish = (event) => {
    if (begin !== null && mark) {
      const [a, b] = [begin, at(event)].sort((p, q) => p - q);
      if (b - a > (to - from) / 200) view = [a, b];
      drawTimeline();
    }
    begin = mark = null;
  };
  svg.addEventListener("pointerup", finish);
  svg.addEventListener("pointerleave", finish);
  svg.addEventListener("dblclick", () => zoom(0));
}
function zoom(factor) { // 0: everything
  const all = slices();
  const whole = [Math.min(...all.map((s) => s.from)), Math.max(...all.map((s) => s.to))];
  const [from, to] = view || whole;
  const half = (to - from) * factor / 2, middle = (from + to) / 2;
  view = factor === 0 ? null : [Math.max(whole[0], middle - half), Math.min(whole[1], middle + half)];
  drawTimeline();
}
function showTip(event, s) {
  const lines = [`${timeText(s.to - s.from)} in this step`];
  const d = s.pass;
  if (d) {
    lines[0] += `, mean ${timeText(d.mean)}`;
    if (d.operator) lines.push(`${d.operator}${d.module ? ` in ${d.module}` : ""}`);
    if (d.step >= 0) lines.push(`grid ${d.grid.join(" \u00d7 ")} of ${d.workgroup_size.join(" \u00d7 ")}` +
      (d.route ? `, route ${d.route}` : ""));
    const rates = [rate(d.bytes_per_s, "GB/s"), rate(d.flops_per_s, "GFLOP/s")].filter(Boolean).join(", ");
    if (rates) lines.push(rates + (d.of_copy_bandwidth ? ` (${percent(d.of_copy_bandwidth)} of copy)` : ""));
    lines.push(...d.bindings.slice(0, 6));
    if (Object.keys(d.flags).length) lines.push(`flagged ${Object.keys(d.flags).join(", ")}`);
  }
  const tip = $("tip");
  tip.replaceChildren(element("b", {}, d ? d.label : s.name), ...lines.map((line) => element("div", {}, line)));
  tip.hidden = false;
  const w = tip.offsetWidth, h = tip.offsetHeight;
  tip.style.left = `${Math.min(event.clientX + 14, innerWidth - w - 8)}px`;
  tip.style.top = `${event.clientY + 18 + h > innerHeight ? event.clientY - h - 10 : event.clientY + 18}px`;
}
function hideTip() { $("tip").hidden = true; }
function drawLegend() {
  const shown = group.kernels.slice(0, 8).map((k, i) => [k.kernel, `var(--k${i})`]);
  if (group.kernels.length > 8) shown.push([`${group.kernels.length - 8} more`, "var(--other)"]);
  $("legend").replaceChildren(...shown.map(([name, colour]) => element("span", {},
    element("span", { class: "swatch", style: `background:${colour}` }), name)));
}

// -- bars -----------------------------------------------------------------------------------

function bar(name, indent, part, ns, colour, title) {
  const row = element("div", { class: "bar", title },
    element("span", { class: "name", style: `padding-left:${indent * 14}px` }, name),
    element("span", { class: "track" }),
    element("span", { class: "number" }, timeText(ns)),
    element("span", { class: "number" }, `${(part * 100).toFixed(part < .0995 ? 1 : 0)} %`));
  row.children[1].append(element("div", { class: "fill", style: `width:${part * 100}%;background:${colour}` }));
  return row;
}
function drawBars() {
  const palette = colours();
  $("modules").replaceChildren(...group.modules.map((m, i) => {
    const parent = group.modules.slice(0, i).reverse().find((p) => p.depth < m.depth);
    const name = parent && parent.depth ? m.module.slice(parent.module.length + 1) : m.module;
    const label = m.instances > 1 ? `${name}  (${m.instances})` : name;
    return bar(label, m.depth, m.share, m.mean, m.depth ? "var(--accent)" : "var(--other)",
      `${m.module}: ${m.dispatches} dispatches`);
  }));
  $("kernels").replaceChildren(...group.kernels.map((k) => bar(k.dispatches > 1 ?
    `${k.kernel}  (${k.dispatches})` : k.kernel, 0, k.share, k.mean, palette.get(k.kernel),
    [k.kernel, rate(k.bytes_per_s, "GB/s"), rate(k.flops_per_s, "GFLOP/s")].filter(Boolean).join(", "))));
}

// -- tables ---------------------------------------------------------------------------------

const TIMES = [["mean", "mean", timeText], ["p50", "p50", timeText], ["p95", "p95", timeText],
  ["min", "min", timeText], ["share", "share", percent], ["bytes_per_s", "GB/s", (v) => rate(v, "")],
  ["of_copy_bandwidth", "of copy", percent], ["flops_per_s", "GFLOP/s", (v) => rate(v, "")]];
const COUNT = ["dispatches", "dispatches", String];
const by = (list) => list.join(" \u00d7 ");
const TABLES = {
  kernels: [["kernel", "kernel"], COUNT, ...TIMES],
  modules: [["module", "module"], ["instances", "instances", String], COUNT, ["own_ns", "own", timeText], ...TIMES],
  operators: [["operator", "operator"], COUNT, ...TIMES],
  layers: [["layer", "layer"], COUNT, ...TIMES],
  dispatches: [["label", "dispatch"], ["operator", "operator"], ["route", "route"], ["grid", "grid", by],
    ["workgroup_size", "workgroup", by], ...TIMES, ["flags", "flags", (f) => Object.keys(f).join(" ")]],
};
function tableOf(rows, columns, sortable) {
  const used = columns.filter(([key]) => rows.some((row) => row[key] !== null && row[key] !== "" && row[key] !== undefined));
  const head = element("tr", {}, ...used.map(([key, name, text]) => {
    const number = text && !["grid", "workgroup_size", "flags"].includes(key);
    const cell = element("th", number ? { class: "number" } : {}, name);
    if (!sortable) return cell;
    cell.tabIndex = 0;
    if (sorting.key === key) cell.setAttribute("aria-sort", sorting.down ? "descending" : "ascending");
    cell.onclick = () => { sorting = { key, down: sorting.key === key ? !sorting.down : true }; drawTable(); };
    cell.onkeydown = (event) => { if (event.key === "Enter") cell.onclick(); };
    return cell;
  }));
  const body = rows.map((row) => element("tr", {}, ...used.map(([key, , text]) => {
    const number = text && !["grid", "workgroup_size", "flags"].includes(key);
    const value = row[key];
    return element("td", number ? { class: "number" } : {},
      value === null || value === undefined ? "" : text ? text(value) : value);
  })));
  return element("table", {}, element("thead", {}, head), element("tbody", {}, ...body));
}
function drawTable() {
  const words = $("filter").value.toLowerCase();
  const text = (row) => TABLES[tab].map(([key]) => row[key]).filter((v) => typeof v === "string").join(" ");
  let rows = group[tab].filter((row) => !words || text(row).toLowerCase().includes(words));
  const { key, down } = sorting;
  if (key) {
    const order = (a, b) => typeof a === "number" || typeof b === "number" ? (a ?? -1) - (b ?? -1) :
      String(a).localeCompare(String(b), "en", { numeric: true });
    rows = [...rows].sort((a, b) => order(a[key], b[key]) * (down ? -1 : 1));
  }
  $("table").replaceChildren(tableOf(rows, TABLES[tab], true));
  $("tabs").replaceChildren(...Object.keys(TABLES).filter((name) => group[name].length).map((name) => {
    const button = element("button", { type: "button", role: "tab", "aria-selected": name === tab },
      `${name} (${group[name].length})`);
    button.onclick = () => { tab = name; sorting = { key: null, down: true }; drawTable(); };
    return button;
  }));
}
function drawHost() {
  const rows = Object.entries(group.host).map(([name, s]) => ({ name, ...s }));
  rows.push({ name: "together", ...group.totals.wall_ns });
  $("host").replaceChildren(tableOf(rows, [["name", "phase"], ...TIMES.slice(0, 4)], false));
  const copies = data.device.copy_bytes_per_s;
  const facts = { adapter: data.device.adapter, implementation: data.device.implementation,
    "timestamp tick": `${data.device.timestamp_period_ns} ns`,
    "copy bandwidth": copies ? rate(copies, "GB/s") : "unknown", ...data.device.info };
  $("device").replaceChildren(...Object.entries(facts).filter(([, value]) => value !== "").flatMap(([name, value]) =>
    [element("dt", {}, name.replaceAll("_", " ")), element("dd", {}, String(value))]));
}
function drawComparison() {
  if (!data.against) return;
  $("comparison").hidden = false;
  $("comparison").firstElementChild.textContent = `${data.against.file} over ${data.file} (below 1: faster)`;
  const rows = [["execute", null, data.against.execute], ["on the GPU", null, data.against.span],
    ...Object.entries(data.against.kernels).map(([name, k]) => [name, k, k.ratio])]
    .map(([name, k, r]) => ({ name, a: k && k.a_ns, b: k && k.b_ns, p50: r && r.p50, p5: r && r.p5, p95: r && r.p95 }));
  const fixed = (v) => v.toFixed(3);
  $("ratios").replaceChildren(tableOf(rows, [["name", ""], ["a", "this", timeText], ["b", "other", timeText],
    ["p50", "ratio p50", fixed], ["p5", "p5", fixed], ["p95", "p95", fixed]], false));
}

// -- all of it ------------------------------------------------------------------------------

function draw() {
  drawTiles(); drawTimeline(); drawLegend(); drawBars(); drawTable(); drawHost();
}
$("filter").oninput = drawTable;
$("zoom-in").onclick = () => zoom(.5);
$("zoom-out").onclick = () => zoom(2);
$("zoom-reset").onclick = () => zoom(0);
$("theme").onclick = () => {
  const dark = getComputedStyle(document.documentElement).colorScheme === "dark";
  document.documentElement.dataset.theme = dark ? "light" : "dark";
};
if (!group) $("method").textContent = "nothing was profiled";
else {
  drawHead(); drawComparison(); draw();
  addEventListener("resize", drawTimeline);
}
