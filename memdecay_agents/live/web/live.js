"use strict";
const EVERY_MS = 1000, KEPT = 300, MOST_ROWS = 100;
const COLOURS = { system: "#D55E00", plan: "#CC79A7", user: "#0072B2", tool_in: "#F0E442", tool_out: "#009E73", retrieval: "#56B4E9", scratchpad: "#999999" };
const PATTERNS = { system: "solid", plan: "rising", user: "falling", tool_in: "dots", tool_out: "horizontal", retrieval: "cross", scratchpad: "vertical" };
const SPARE = [["#E69F00", "grid"], ["#8B5A2B", "rings"], ["#6A3D9A", "wide_rising"], ["#B15928", "wide_falling"]];
const known = new Map(); // region -> number of its pattern
const past = { speed: [], held: [] };
let paused = false, failures = 0;
const place = (id) => document.getElementById(id);

function regionNumber(name) {
  if (!known.has(name)) {
    const spare = SPARE[[...known.keys()].filter((region) => !(region in COLOURS)).length % SPARE.length];
    known.set(name, known.size);
    document.querySelectorAll("body > svg").forEach((old) => old.remove());
    addPatterns([...known.keys()].map((region, i, all) => {
      const custom = all.slice(0, i).filter((other) => !(other in COLOURS)).length % SPARE.length;
      return { name: region, colour: COLOURS[region] || SPARE[custom][0], hatch: PATTERNS[region] || SPARE[custom][1] };
    }));
    const key = html("span", null, place("key"), "key");
    swatch(known.get(name), key);
    html("span", name, key);
  }
  return known.get(name);
}

const whole = (value) => Math.round(value).toLocaleString("en-US");
const duration = (s) => s < 60 ? `${Math.floor(s)} s` : s < 3600 ? `${Math.floor(s / 60)} min` : `${Math.floor(s / 3600)} h ${Math.floor(s % 3600 / 60)} min`;

function bar(byRegion, budget, most, parent) {
  const names = Object.keys(byRegion).sort((a, b) => (Object.keys(COLOURS).indexOf(a) + 99) % 99 - (Object.keys(COLOURS).indexOf(b) + 99) % 99 || (a < b ? -1 : 1));
  const words = names.map((name) => `${name} ${byRegion[name]}`).join(", ") || "nothing held";
  const picture = svg("svg", { class: "regions", viewBox: "0 0 240 18", preserveAspectRatio: "none", role: "img", "aria-label": words }, parent);
  svg("title", {}, picture).textContent = words + (budget === null ? "" : `; budget ${budget} pages`);
  let at = 0;
  for (const name of names) {
    const width = byRegion[name] / Math.max(most, 1) * 240;
    const box = svg("rect", { x: at, y: 0, width, height: 18, fill: `url(#region-${regionNumber(name)})` }, picture);
    box.dataset.region = name;
    at += width;
  }
  if (budget !== null) svg("path", { class: "budget", d: `M${Math.min(budget / Math.max(most, 1) * 240, 239)} 0v18` }, picture);
}

function table(id, titles, rows, leftOut) {
  const holder = place(id), list = html("table");
  const head = html("tr", null, html("thead", null, list)), body = html("tbody", null, list);
  for (const [title, kind] of titles) html("th", title, head, kind).scope = "col";
  for (const cells of rows) {
    const line = html("tr", null, body);
    cells.forEach((cell, i) => {
      const place = html("td", typeof cell === "function" ? null : cell, line, titles[i][1]);
      if (typeof cell === "function") cell(place);
    });
  }
  holder.replaceChildren(list);
  if (!rows.length) html("p", "none", holder, "quiet");
  if (leftOut > 0) html("p", `and ${whole(leftOut)} more`, holder, "quiet");
}

function line(id, values, unit) {
  const holder = place(id), top = Math.max(...values, 1e-9), w = 300, h = 90;
  const picture = svg("svg", { class: "line", viewBox: `0 0 ${w} ${h}`, preserveAspectRatio: "none", role: "img", "aria-label": `last ${values.length} seconds, now ${values[values.length - 1].toFixed(1)} ${unit}, at most ${top.toFixed(1)}` });
  const d = values.map((value, i) => `${i ? "L" : "M"}${w - (values.length - 1 - i) * w / (KEPT - 1)} ${h - 3 - value / top * (h - 10)}`).join("");
  svg("path", { d, "vector-effect": "non-scaling-stroke" }, picture);
  holder.replaceChildren(picture);
  html("p", `now ${values[values.length - 1].toFixed(1)}, most ${top < 1e-6 ? 0 : top.toFixed(1)} ${unit}; the last five minutes`, holder, "quiet");
}

function card(name, value, note) {
  const box = html("div", null, place("cards"), "card");
  html("span", name, box, "quiet");
  html("b", value, box);
  html("span", note || "", box, "quiet");
}

function show(now) {
  const pool = now.pool;
  place("title").textContent = now.model || "memdecay";
  place("about").textContent = `policy ${now.policy}, pages of ${now.page_size_tokens} tokens, up ${duration(now.uptime_seconds)}` + (now.scope === "tenant" ? "; only this key's own sessions" : "");
  place("cards").replaceChildren();
  const running = now.sessions.filter((one) => one.state === "running").length;
  card("agents", whole(now.agents.length + now.agents_left_out));
  card("sessions", whole(now.sessions.length + now.sessions_left_out), `${running} running`);
  card("pages held", whole(pool.held_pages), `of ${whole(pool.total_pages)}` + (pool.free_pages === null ? "" : `, ${whole(pool.free_pages)} free`));
  if (pool.host_pages !== null) card("pages on the host", whole(pool.host_pages));
  card("generated", `${now.flow.generated_tokens_per_second.toFixed(1)}/s`, `${whole(now.flow.generated_tokens)} tokens`);
  card("computed", `${now.flow.computed_tokens_per_second.toFixed(1)}/s`, `${whole(now.flow.computed_tokens)} tokens`);
  card("evicted", whole(now.evictions.pages), "pages");
  if (pool.waiting_requests) card("waiting", whole(pool.waiting_requests), "requests");
  const most = Math.max(1, ...now.agents.map((agent) => Math.max(agent.pages_held, agent.budget_pages || 0)));
  table("agents", [["agent", "name"], ["running", "number"], ["idle", "number"], ["held, by region; line: budget"], ["pages", "number"], ["budget", "number"], ["used", "number"], ["evicted", "number"], ["tokens/s", "number"]],
    now.agents.slice(0, MOST_ROWS).map((agent) => {
      const use = agent.budget_pages ? agent.pages_held / agent.budget_pages : null;
      return [agent.agent || "(no name)", agent.running_sessions, agent.idle_sessions, (cell) => bar(agent.pages_held_by_region, agent.budget_pages, most, cell), whole(agent.pages_held),
        agent.budget_pages === null ? "none" : whole(agent.budget_pages), (cell) => { cell.textContent = use === null ? "" : `${Math.round(use * 100)} %${use > 1 ? " over" : ""}`; if (use > 1) cell.classList.add("over"); },
        whole(agent.evictions.pages), agent.flow.generated_tokens_per_second.toFixed(1)];
    }), now.agents.length + now.agents_left_out - MOST_ROWS);
  table("sessions", [["session", "name"], ["agent", "name"], ["state"], ["turn", "number"], ["tokens", "number"], ["pages", "number"], ["held, by region"], ["budget", "number"], ["evicted", "number"]],
    now.sessions.slice(0, MOST_ROWS).map((one) => [one.session, one.agent, one.idle_seconds === null ? "running" : `idle ${duration(one.idle_seconds)}`, one.turn, whole(one.tokens), whole(one.pages_held),
      (cell) => bar(one.pages_held_by_region, one.budget_pages, Math.max(one.pages_held, one.budget_pages || 0), cell), one.budget_pages === null ? "none" : whole(one.budget_pages), whole(one.evicted_pages)]),
    now.sessions.length + now.sessions_left_out - MOST_ROWS);
  const counts = (byName) => Object.entries(byName).sort((a, b) => b[1] - a[1]).map(([name, pages]) => [name, whole(pages)]);
  table("reasons", [["why", "name"], ["pages", "number"]], counts(now.evictions.by_reason), 0);
  table("regions", [["region", "name"], ["pages", "number"]], counts(now.evictions.by_region), 0);
  past.speed.push(now.flow.generated_tokens_per_second);
  past.held.push(pool.held_pages);
  for (const name of ["speed", "held"]) past[name].splice(0, past[name].length - KEPT);
  line("speed", past.speed, "tokens/s");
  line("held", past.held, "pages");
}

function problem(text) {
  place("problem").hidden = !text;
  place("problem").textContent = text || "";
}

async function look() {
  if (!paused && !document.hidden) {
    try {
      const answer = await fetch("snapshot.json", { cache: "no-store", credentials: "same-origin" });
      const body = await answer.json().catch(() => null);
      if (!answer.ok) throw new Error(body && body.error ? body.error.message : `the page's server answered with ${answer.status}`);
      show(body);
      problem(null);
      failures = 0;
    } catch (error) {
      failures += 1;
      problem(`No news: ${error.message}. What is shown is what was known last.`);
    }
  }
  setTimeout(look, EVERY_MS * Math.min(2 ** failures, 16));
}

place("pause").addEventListener("click", () => {
  paused = !paused;
  place("pause").setAttribute("aria-pressed", String(paused));
  place("pause").textContent = paused ? "go on" : "pause";
});
look();
