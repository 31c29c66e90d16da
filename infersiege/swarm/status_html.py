"""The HTML of the status page: style and script inside, all text set by `textContent` (a run's name is not markup)."""

from __future__ import annotations

PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>infersiege</title>
<style>
:root { color-scheme: light dark; --ink: #1c2430; --dim: #5b6675; --back: #f6f7f9; --card: #ffffff; --line: #d9dee5;
  --bad: #b42318; --bar: #2563eb; --note: #8a5a00; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6eaf0; --dim: #98a3b3; --back: #12161c; --card: #1b212a; --line: #2d3642; --bad: #ff8a80;
    --bar: #6ea8fe; --note: #ffc95c; } }
* { box-sizing: border-box; }
body { margin: 0; padding: 1.5rem; background: var(--back); color: var(--ink);
  font: 16px/1.4 system-ui, sans-serif; }
main { max-width: 60rem; margin: 0 auto; }
h1 { font-size: 1.25rem; margin: 0; overflow-wrap: anywhere; }
p { margin: .25rem 0; color: var(--dim); }
#emulated { color: var(--note); font-weight: 600; }
#note, #stale { color: var(--note); min-height: 1.4em; }
progress { width: 100%; height: .5rem; margin: .75rem 0; accent-color: var(--bar); }
dl { display: grid; grid-template-columns: repeat(auto-fill, minmax(9.5rem, 1fr)); gap: .75rem; margin: .5rem 0 1rem; }
dl div { background: var(--card); border: 1px solid var(--line); border-radius: .5rem; padding: .6rem .8rem; }
dt { color: var(--dim); font-size: .8rem; }
dd { margin: 0; font-size: 1.35rem; font-variant-numeric: tabular-nums; }
dd.bad { color: var(--bad); }
a { color: var(--bar); }
</style>
</head>
<body>
<main>
<h1 id="run">infersiege</h1>
<p id="emulated" hidden>Emulated engine: these figures say nothing about hardware.</p>
<p id="where">waiting for the first figures</p>
<progress id="progress" max="1" hidden></progress>
<p id="note" aria-live="polite"></p>
<dl id="figures"></dl>
<p id="over"></p>
<p id="stale" role="status"></p>
<p><a id="grafana" rel="noopener noreferrer" hidden>Grafana</a></p>
<noscript><p>This page needs JavaScript; the same figures are at <a href="status.json">status.json</a>.</p></noscript>
</main>
<script>
"use strict";
const at = id => document.getElementById(id);
const absent = "\\u2013";
const number = (value, digits = 3) => value === null || value === undefined ? absent :
  value.toLocaleString("en", { maximumSignificantDigits: Math.max(digits, String(Math.trunc(value)).length) });
const ms = ns => ns === null || ns === undefined ? absent : number(ns / 1e6) + " ms";
const span = ns => {
  const seconds = Math.round(ns / 1e9);
  const parts = [Math.floor(seconds / 3600), Math.floor(seconds / 60) % 60, seconds % 60];
  return (parts[0] ? parts[0] + " h " : "") + (parts[0] || parts[1] ? parts[1] + " min " : "") + parts[2] + " s";
};
function card(name, value, bad) {
  const box = document.createElement("div"), term = document.createElement("dt"), text = document.createElement("dd");
  term.textContent = name;
  text.textContent = value;
  text.className = bad ? "bad" : "";
  box.append(term, text);
  return box;
}
function draw(status) {
  document.title = status.run + " \\u00b7 infersiege";
  at("run").textContent = status.run;
  at("emulated").hidden = !status.emulated;
  if (/^https?:/.test(status.grafana || "")) {
    at("grafana").href = status.grafana;
    at("grafana").hidden = false;
  }
  const live = status.live;
  if (!live) {
    at("where").textContent = "waiting for the workers and the target";
    return;
  }
  const left = live.left_ns === null ? "" : " \\u00b7 " + span(live.left_ns) + " left";
  at("where").textContent = live.stage + " \\u00b7 " + live.phase + " \\u00b7 " + span(live.elapsed_ns) + left;
  at("note").textContent = live.note || "";
  at("progress").hidden = live.left_ns === null;
  if (live.left_ns !== null) at("progress").value = live.elapsed_ns / Math.max(1, live.elapsed_ns + live.left_ns);
  const share = live.error_share === null ? "" : " (" + number(100 * live.error_share, 2) + " %)";
  at("figures").replaceChildren(
    card("users", number(live.users)),
    card("requests in flight", number(live.in_flight)),
    card("turns/s", number(live.turns_per_second)),
    card("tokens/s", number(live.tokens_per_second)),
    card("TTFT p50", ms(live.ttft_p50_ns)),
    card("TTFT p99", ms(live.ttft_p99_ns)),
    card("failed turns", number(live.failed) + share, live.failed > 0),
    card("turns closed", number(live.closed) + " of " + number(live.planned)),
    card("workers", live.workers_alive + " of " + live.workers, live.workers_alive < live.workers));
  at("over").textContent = "Rates and percentiles are of the last " + span(live.over_ns) + ", for the eye only.";
}
let misses = 0;
async function refresh() {
  try {
    const answer = await fetch("status.json", { cache: "no-store", signal: AbortSignal.timeout(5000) });
    if (!answer.ok) throw new Error("status " + answer.status);
    draw(await answer.json());
    misses = 0;
    at("stale").textContent = "";
  } catch (error) {
    misses += 1;
    at("stale").textContent = misses < 3 ? "" : "No answer from the master: the run is over, or it can't be reached.";
  }
  setTimeout(refresh, Math.min(1000 * Math.max(1, misses), 10000));
}
refresh();
</script>
</body>
</html>
"""
