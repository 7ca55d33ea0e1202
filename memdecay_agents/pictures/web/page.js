"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const regionNumber = new Map(data.regions.map((region, i) => [region.name, i]));
const hidden = new Set();
const show = { evicted: true, marks: true };
let plots = [];
const LINES = ["", "7 4", "10 3 2 3", "2 3"];
const COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#999999"];

addPatterns(data.regions);
const main = document.getElementById("main");
html("h1", data.title, main);
html("p", data.about, main, "quiet");
if (!data.charts.length) html("p", "There is no session to draw.", main);

// --- the retention map

function boxes(plot, chart) {
  const size = chart.page_size_tokens;
  for (const row of chart.rows) {
    if (hidden.has(row.region)) continue;
    const low = row.first_page * size, high = row.end_page * size;
    if (high < plot.y[0] || low > plot.y[1]) continue;
    const y = plot.sy(low), height = Math.max(plot.sy(high) - y, 0.4), fill = `url(#region-${regionNumber.get(row.region)})`;
    for (const [start, end, held, evicted, host] of row.steps) {
      if (end < plot.x[0] || start > plot.x[1]) continue;
      if (!held && !host && !show.evicted) continue;
      const total = held + evicted + host;
      const plain = data.regions[regionNumber.get(row.region)].colour;
      const strength = (held + 0.5 * host + (show.evicted ? 0.16 : 0) * evicted) / total;
      const box = svg("rect", {
        x: plot.sx(start), y, width: Math.max(plot.sx(end) - plot.sx(start), 0.5), height,
        fill: held ? fill : plain, "fill-opacity": strength,
      }, plot.body);
      box.dataset.counts = [row.first_page, start, end, held, evicted, host].join(" ");
      if (host && !held) svg("rect", {
        x: plot.sx(start), y: y + height * 0.35, width: Math.max(plot.sx(end) - plot.sx(start), 0.5), height: height * 0.3, fill: plain,
      }, plot.body);
    }
  }
}

function drawMap(plot, chart) {
  boxes(plot, chart);
  const size = chart.page_size_tokens;
  for (const at of chart.rewinds) svg("line", { class: "rewind", x1: plot.sx(at), x2: plot.sx(at), y1: 0, y2: plot.height }, plot.body);
  if (!show.marks) return;
  let d = "";
  for (const mark of chart.marks) {
    const row = chart.rows[mark.row];
    if (hidden.has(row.region)) continue;
    const x = plot.sx(mark.at), y = plot.sy((row.first_page + row.end_page) / 2 * size);
    if (x < plot.left - 4 || x > plot.left + plot.innerWidth + 4 || y < 0 || y > plot.height) continue;
    d += mark.reason === "swapped_in" ? `M${x - 3} ${y}h6m-3-3v6` : `M${x - 2.5} ${y - 2.5}l5 5m-5 0l5-5`;
  }
  svg("path", { class: "marks", d }, plot.body);
}

function hoverMap(x, y, plot, chart) {
  const size = chart.page_size_tokens, row = chart.rows[Math.floor(y / size / chart.pages_per_row)];
  if (!row || hidden.has(row.region)) return null;
  const step = row.steps.find(([start, end]) => start <= x && x < end);
  const index = chart.rows.indexOf(row), near = 6 / plot.innerWidth * (plot.x[1] - plot.x[0]);
  const marks = chart.marks.filter((mark) => mark.row === index && Math.abs(mark.at - x) <= near);
  const pages = row.end_page - row.first_page > 1 ? `pages ${row.first_page} to ${row.end_page - 1}` : `page ${row.first_page}`;
  const lines = [`${row.region}, ${pages}, tokens ${number(row.first_page * size)} to ${number(row.end_page * size - 1)}`];
  if (step) {
    const [, , held, evicted, host] = step;
    const states = [[held, "held"], [evicted, "evicted"], [host, "on the host"]].filter(([count]) => count);
    lines.push(`at ${number(Math.floor(x))}: ` + states.map(([count, name]) => row.end_page - row.first_page > 1 ? `${count} ${name}` : name).join(", "));
  } else if (x < plot.whole.x[1]) lines.push("not computed yet");
  for (const mark of marks.slice(0, 4)) {
    const score = mark.score === null ? "" : `, score ${mark.score.toPrecision(4)}`;
    lines.push(`${mark.reason === "swapped_in" ? "came back" : "left"} at ${number(mark.at)}, turn ${mark.turn}: ${mark.reason}${mark.pages > 1 ? `, ${mark.pages} pages` : ""}${score}`);
  }
  return lines.join("\n");
}

// --- memory over time

function last(at, x) {
  let low = 0, high = at.length - 1;
  while (low < high) { const middle = (low + high + 1) >> 1; if (at[middle] <= x) low = middle; else high = middle - 1; }
  return low;
}

function shownRegions(chart) { return data.regions.filter((region) => chart.memory.held[region.name] && !hidden.has(region.name)); }

function drawMemory(plot, chart) {
  const at = chart.memory.at;
  let below = at.map(() => 0);
  for (const region of shownRegions(chart)) {
    const above = below.map((value, i) => value + chart.memory.held[region.name][i]);
    let d = plot.stepPath(at, above);
    for (let i = at.length - 1; i >= 0; i--) d += `${i === at.length - 1 ? "L" : "H"}${plot.sx(at[Math.min(i + 1, at.length - 1)])}${i === at.length - 1 ? " " : "V"}${plot.sy(below[i])}`;
    const area = svg("path", { d: d + `H${plot.sx(at[0])}Z`, fill: `url(#region-${regionNumber.get(region.name)})` }, plot.body);
    area.dataset.region = region.name;
    below = above;
  }
  svg("path", { class: "trace", d: plot.stepPath(at, chart.memory.trace) }, plot.body);
  svg("path", { class: "held", d: plot.stepPath(at, below) }, plot.body);
  if (chart.memory.host.some((value) => value)) svg("path", { class: "host", d: plot.stepPath(at, below.map((value, i) => value + chart.memory.host[i])) }, plot.body);
  if (chart.budget_tokens !== null) svg("path", { class: "budget", d: `M${plot.left} ${plot.sy(chart.budget_tokens)}h${plot.innerWidth}` }, plot.body);
}

function hoverMemory(x, chart) {
  const i = last(chart.memory.at, x), regions = shownRegions(chart);
  const sum = regions.reduce((total, region) => total + chart.memory.held[region.name][i], 0);
  const lines = [`at ${number(Math.floor(x))}: ${number(sum)} tokens held of ${number(chart.memory.trace[i])}`];
  for (const region of regions) if (chart.memory.held[region.name][i]) lines.push(`${region.name} ${number(chart.memory.held[region.name][i])}`);
  if (chart.memory.host[i]) lines.push(`on the host ${number(chart.memory.host[i])}`);
  if (chart.budget_tokens !== null) lines.push(`budget ${number(chart.budget_tokens)}, used ${Math.round(100 * sum / Math.max(chart.budget_tokens, 1))} %`);
  return lines.join("\n");
}

// --- the page

function section(holder, title, note) {
  const part = html("section", null, holder);
  html("h2", title, part);
  if (note) html("p", note, part, "quiet");
  return part;
}

function lineKey(holder, text, className, dash, colour) {
  const key = html("span", null, holder, "key");
  const picture = svg("svg", { viewBox: "0 0 26 10", class: "chart", "aria-hidden": "true" }, key);
  if (colour) svg("path", { d: "M0 5h26", class: "under" }, picture);
  const line = svg("path", { d: "M0 5h26", class: className || "", "stroke-dasharray": dash || "" }, picture);
  if (colour) { line.setAttribute("stroke", colour); line.setAttribute("stroke-width", 2); line.setAttribute("fill", "none"); }
  html("span", text, key);
}

function toggles() {
  const bar = html("div", null, main, "bar");
  bar.setAttribute("role", "group");
  bar.setAttribute("aria-label", "what is shown");
  const add = (name, paint, flip) => {
    const button = html("button", null, bar);
    button.type = "button";
    button.setAttribute("aria-pressed", "true");
    if (paint) paint(button);
    html("span", name, button);
    button.addEventListener("click", () => {
      button.setAttribute("aria-pressed", String(flip()));
      plots.forEach((plot) => plot.later());
    });
  };
  data.regions.forEach((region, i) => add(region.name, (button) => swatch(i, button), () => {
    if (!hidden.delete(region.name)) hidden.add(region.name);
    return !hidden.has(region.name);
  }));
  add("evicted (faded)", null, () => (show.evicted = !show.evicted));
  add("marks (×)", null, () => (show.marks = !show.marks));
}

function sessionPart(holder, chart) {
  const grouped = chart.pages_per_row > 1 ? ` A row is ${chart.pages_per_row} pages: the fuller its colour, the more of them are held.` : "";
  const coarse = chart.time_grid > 1 ? ` Times are rounded to ${number(chart.time_grid)} tokens.` : "";
  const map = section(holder, `What ${chart.name} kept`, `A row for each page, from the moment it was computed. Full: held; faded: evicted; half with a bar: in host memory; ×: left the cache; +: came back; dotted line: the history was rewound.${grouped}${coarse} Ctrl + wheel, double click, + and − zoom; drag or arrow keys move; 0 resets.`);
  const bar = html("div", null, map, "bar");
  const end = Math.max(chart.end_at, 1), rows = Math.max(chart.pages, 1) * chart.page_size_tokens;
  const retention = new Plot(map, {
    label: `Retention map of ${chart.name}`, x: [0, end], y: [0, rows], zoomY: true, downward: true, height: 420,
    xLabel: "tokens computed", yLabel: "token position", draw: (plot) => drawMap(plot, chart), hover: (x, y, plot) => hoverMap(x, y, plot, chart),
  });
  zoomButtons(bar, retention);
  const memory = section(holder, "Memory over time");
  const keys = html("div", null, memory);
  lineKey(keys, "held", "held");
  lineKey(keys, "whole trace", "trace");
  if (chart.budget_tokens !== null) lineKey(keys, "budget", "budget");
  if (chart.memory.host.some((value) => value)) lineKey(keys, "held and on the host", "host");
  const top = Math.max(1, ...chart.memory.trace, chart.budget_tokens || 0) * 1.05;
  const curve = new Plot(memory, {
    label: `Tokens in the cache of ${chart.name} over time`, x: [0, end], y: [0, top], zoomY: true, xLabel: "tokens computed", yLabel: "tokens in the cache",
    draw: (plot) => drawMemory(plot, chart), hover: (x) => hoverMemory(x, chart),
  });
  const details = html("details", null, holder);
  html("summary", "The same in numbers", details);
  const table = html("table", null, html("div", null, details, "wide"));
  const head = html("tr", null, table);
  for (const name of ["region", "tokens held at the end", "pages that left"]) html("th", name, head).scope = "col";
  for (const region of data.regions) {
    const held = chart.held_at_end[region.name] || 0, gone = chart.evicted_by_region[region.name] || 0;
    if (!held && !gone) continue;
    const line = html("tr", null, table);
    html("td", region.name, line, "name"); html("td", number(held), line, "number"); html("td", number(gone), line, "number");
  }
  html("p", "Why: " + (Object.entries(chart.events_by_reason).map(([reason, pages]) => `${reason} ${number(pages)} pages`).join(", ") || "nothing left"), details);
  return [retention, curve];
}

function agentsPart(holder) {
  const part = section(holder, "Memory by agent"), keys = html("div", null, part);
  const charts = data.charts.slice(0, 12);
  const held = charts.map((chart) => chart.memory.at.map((_, i) => Object.values(chart.memory.held).reduce((sum, column) => sum + column[i], 0)));
  charts.forEach((chart, i) => lineKey(keys, chart.name, "", LINES[Math.floor(i / 6 + i) % 4], COLOURS[i % 6]));
  return new Plot(part, {
    label: "Tokens held by each agent over time", x: [0, Math.max(1, ...charts.map((chart) => chart.end_at))], y: [0, Math.max(1, ...held.flat()) * 1.05],
    xLabel: "tokens computed", yLabel: "tokens held",
    draw: (plot) => charts.forEach((chart, i) => svg("path", { d: plot.stepPath(chart.memory.at, held[i]), fill: "none", stroke: COLOURS[i % 6], "stroke-width": 1.8, "stroke-dasharray": LINES[Math.floor(i / 6 + i) % 4] }, plot.body)),
    hover: (x) => charts.filter((chart) => x <= chart.end_at).map((chart) => `${chart.name}: ${number(held[charts.indexOf(chart)][last(chart.memory.at, x)])}`).join("\n") || null,
  });
}

function budgetPart(holder) {
  const part = section(holder, "Budget use"), keys = html("div", null, part), charts = data.charts.slice(0, 12);
  lineKey(keys, "most (frame)", "most"); lineKey(keys, "at the end", "", "", "#0072B2"); lineKey(keys, "budget", "budget");
  const end = charts.map((chart) => Object.values(chart.held_at_end).reduce((a, b) => a + b, 0));
  return new Plot(part, {
    label: "Tokens held against the budget, by agent", x: [0, Math.max(1, ...charts.map((chart) => Math.max(chart.peak_tokens, chart.budget_tokens || 0))) * 1.08], y: [0, charts.length],
    names: true, downward: true, left: 24, xLabel: "tokens held", yLabel: "", height: 60 + 44 * charts.length,
    draw: (plot) => charts.forEach((chart, i) => {
      const name = svg("text", { x: plot.left + 4, y: plot.sy(i) + 13 }, plot.body);
      name.textContent = chart.name.length > 40 ? chart.name.slice(0, 39) + "…" : chart.name;
      const y = plot.sy(i) + 17, bar = (value) => Math.max(plot.sx(value) - plot.sx(0), 0);
      svg("rect", { x: plot.sx(0), y: y + 4, width: bar(end[i]), height: 12, fill: "#0072B2" }, plot.body);
      svg("rect", { class: "most", x: plot.sx(0), y: y, width: bar(chart.peak_tokens), height: 20 }, plot.body);
      if (chart.budget_tokens !== null) svg("path", { class: "budget", d: `M${plot.sx(chart.budget_tokens)} ${y - 3}v26` }, plot.body);
    }),
    hover: (x, y) => {
      const chart = charts[Math.floor(y)];
      if (!chart) return null;
      const budget = chart.budget_tokens === null ? "no budget known" : `budget ${number(chart.budget_tokens)}`;
      return `${chart.name}: ${number(end[Math.floor(y)])} tokens at the end, ${number(chart.peak_tokens)} at most, ${budget}`;
    },
  });
}

function priorityPart(holder) {
  const part = section(holder, `Priority by age (${data.decay_form.replace("_", " ")})`), keys = html("div", null, part);
  if (!data.priorities.length) { html("p", "A ledger does not name them; give a profile.", part, "quiet"); return null; }
  const colour = (name) => data.regions[regionNumber.get(name)].colour;
  data.priorities.forEach((one, i) => lineKey(keys, one.region + (one.pinned ? " (pinned)" : ""), "", LINES[i % 4], colour(one.region)));
  return new Plot(part, {
    label: "Priority of each region by age", x: [0, data.priorities[0].ages[data.priorities[0].ages.length - 1]], y: [0, Math.max(0.01, ...data.priorities.map((one) => one.values[0])) * 1.05],
    xLabel: `age, ${data.clock_unit}`, yLabel: "priority",
    draw: (plot) => data.priorities.forEach((one, i) => {
      if (hidden.has(one.region)) return;
      const d = one.ages.map((age, k) => `${k ? "L" : "M"}${plot.sx(age)} ${plot.sy(one.values[k])}`).join("");
      svg("path", { class: "under", d }, plot.body); // yellow on white needs an edge
      svg("path", { d, fill: "none", stroke: colour(one.region), "stroke-width": 2.4, "stroke-dasharray": LINES[i % 4] }, plot.body);
    }),
    hover: (x) => `age ${number(Math.round(x))}\n` + data.priorities.filter((one) => !hidden.has(one.region)).map((one) => {
      const k = x / one.ages[one.ages.length - 1] * (one.ages.length - 1), low = Math.floor(k), high = Math.min(low + 1, one.ages.length - 1);
      return `${one.region} ${(one.values[low] + (one.values[high] - one.values[low]) * (k - low)).toPrecision(3)}`;
    }).join("\n"),
  });
}

if (data.charts.length) {
  const bar = html("div", null, main, "bar");
  const label = html("label", "session ", bar), chooser = html("select", null, label);
  data.charts.forEach((chart, i) => { html("option", `${chart.name}: ${chart.session}`, chooser).value = i; });
  toggles();
  const chosen = html("div", null, main);
  const grid = html("div", null, main, "grid");
  const common = [agentsPart(grid), budgetPart(grid), priorityPart(grid)].filter(Boolean);
  const choose = () => { chosen.replaceChildren(); plots = [...sessionPart(chosen, data.charts[chooser.value]), ...common]; };
  chooser.addEventListener("change", choose);
  choose();
}
