"""The frame of report.html: its style and the script that draws the figures. No address outside of the file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from infersiege.report.words import Words

POLICY: Final = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; "
    "base-uri 'none'; form-action 'none'"
)
"""The browser is told to fetch nothing at all."""

_DARK: Final = """
  color-scheme: dark;
  --page: #14171b; --card: #1b1f25; --ink: #e6e9ee; --soft: #9aa4b2; --line: #2c333d; --head: #20262e;
  --accent: #6aa9ea; --good: #4fc08d; --bad: #f07a75; --odd: #e6b455; --wrong: #c79bf0;
  --good-bg: #16291f; --bad-bg: #321b1c; --odd-bg: #30270f; --wrong-bg: #291f38;
"""

_LIGHT: Final = """
  color-scheme: light;
  --page: #f6f7f9; --card: #ffffff; --ink: #1c2430; --soft: #565f6e; --line: #e0e4ea; --head: #f1f3f6;
  --accent: #2467ad; --good: #17703f; --bad: #b3302b; --odd: #855600; --wrong: #6b3fa0;
  --good-bg: #e8f5ee; --bad-bg: #fcebea; --odd-bg: #fdf4de; --wrong-bg: #f2ebfa;
"""

STYLE: Final = (
    ":root {"
    + _LIGHT
    + """}
@media (prefers-color-scheme: dark) { :root:not([data-theme="light"]) {"""
    + _DARK
    + """} }
:root[data-theme="dark"] {"""
    + _DARK
    + """}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; scroll-behavior: smooth; }
@media (prefers-reduced-motion: reduce) { html { scroll-behavior: auto; } }
body {
  margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "Liberation Sans",
    "PingFang SC", "Microsoft YaHei", "Noto Sans CJK SC", sans-serif;
  font-variant-numeric: tabular-nums;
}
main, header.top, footer { max-width: 1180px; margin: 0 auto; padding: 0 20px; }
header.top { padding-top: 30px; }
.kind { color: var(--soft); font-size: 12px; letter-spacing: .09em; text-transform: uppercase; margin: 0; }
h1 { font-size: 27px; line-height: 1.25; margin: 2px 0 4px; overflow-wrap: anywhere; font-weight: 650; }
h2 { font-size: 19px; margin: 40px 0 4px; font-weight: 640; }
h3 { font-size: 15px; margin: 0; font-weight: 620; }
p { margin: 4px 0 10px; }
a { color: var(--accent); }
.soft, .sub { color: var(--soft); }
.skip { position: absolute; left: -999px; background: var(--card); padding: 8px 14px; z-index: 9; }
.skip:focus { left: 8px; top: 8px; }
.spoken {
  position: absolute; width: 1px; height: 1px; margin: -1px; overflow: hidden; clip-path: inset(50%);
  white-space: nowrap;
}
button {
  font: inherit; font-size: 12.5px; color: var(--ink); background: var(--card); border: 1px solid var(--line);
  border-radius: 7px; padding: 3px 10px; cursor: pointer;
}
button:hover { border-color: var(--accent); }
#theme { float: right; }
.zoom { float: right; display: flex; gap: 4px; margin-left: 8px; } .zoom button { padding: 0 7px; min-width: 26px; }
.data { font-size: 12.5px; margin: 6px 0 4px; } .data .scroll { max-height: 320px; overflow: auto; }
.keys { display: flex; flex-wrap: wrap; gap: 2px 18px; margin: 6px 0; padding: 0; list-style: none; font-size: 12.5px; }
.key { display: inline-block; width: 12px; height: 12px; margin-right: 6px; vertical-align: -1px; }
.timeline { display: block; }
.t-wait { fill: #d9534f; background: #d9534f; } .t-connect { fill: #9a78d0; background: #9a78d0; }
.t-upload { fill: #e0913d; background: #e0913d; } .t-server { fill: #4c8fd6; background: #4c8fd6; }
.t-first { fill: #4aa7c4; background: #4aa7c4; } .t-stream { fill: #2fa58d; background: #2fa58d; }
.t-tail { fill: #8a9099; background: #8a9099; }
.sub { margin: 0 0 14px; }
code {
  font: 12.5px/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, "Liberation Mono", monospace;
  overflow-wrap: anywhere;
}
nav { display: flex; flex-wrap: wrap; gap: 2px 16px; padding: 10px 0 2px; font-size: 13.5px; }
nav a { text-decoration: none; }
nav a:hover { text-decoration: underline; }
.banner {
  border-radius: 10px; padding: 13px 18px; margin: 12px 0; border: 1px solid var(--line); border-left: 5px solid;
  background: var(--card);
}
.banner strong { font-size: 17px; letter-spacing: .02em; }
.banner ul { margin: 6px 0 0; padding-left: 20px; }
.banner p { margin: 2px 0 0; }
.pass { border-left-color: var(--good); background: var(--good-bg); } .pass strong, .v-pass { color: var(--good); }
.fail { border-left-color: var(--bad); background: var(--bad-bg); } .fail strong, .v-fail { color: var(--bad); }
.nodata { border-left-color: var(--odd); background: var(--odd-bg); } .nodata strong, .v-nodata { color: var(--odd); }
.invalid { border-left-color: var(--wrong); background: var(--wrong-bg); }
.invalid strong, .v-invalid { color: var(--wrong); }
.none { border-left-color: var(--soft); }
.emulated, .emulated strong {
  color: #3a2a00;
}
.emulated {
  border: 2px dashed #c98a00; font-weight: 560;
  background: repeating-linear-gradient(-45deg, #ffe08a, #ffe08a 14px, #ffd566 14px, #ffd566 28px);
}
.cards {
  display: grid; grid-template-columns: repeat(auto-fill, minmax(158px, 1fr)); gap: 12px; margin: 12px 0; padding: 0;
  list-style: none;
}
.cards li { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 11px 14px; }
.cards .label { color: var(--soft); font-size: 12.5px; }
.cards .value { font-size: 24px; line-height: 1.3; font-weight: 640; white-space: nowrap; }
.cards .value small { font-size: 13px; font-weight: 450; color: var(--soft); }
.cards .note { color: var(--soft); font-size: 12px; line-height: 1.35; }
.grid { display: grid; grid-template-columns: 1fr 1fr; gap: 14px; margin: 10px 0; }
.grid > .wide { grid-column: 1 / -1; }
figure {
  margin: 0; background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 13px 14px 8px;
  min-width: 0;
}
figure .plot { min-height: 300px; }
figcaption { font-size: 12.5px; color: var(--soft); line-height: 1.4; }
figcaption .words { display: block; color: var(--ink); margin-top: 2px; }
.empty { color: var(--soft); padding: 30px 0; text-align: center; }
.scroll {
  position: relative; overflow-x: auto; background: var(--card); border: 1px solid var(--line); border-radius: 10px;
  margin: 10px 0;
}
.scroll:focus-visible, a:focus-visible, summary:focus-visible, button:focus-visible, pre:focus-visible {
  outline: 2px solid var(--accent); outline-offset: 2px; }
table { border-collapse: collapse; width: 100%; font-size: 13.5px; }
caption { text-align: left; padding: 10px 14px 6px; color: var(--soft); font-size: 12.5px; }
th, td {
  padding: 6px 14px; text-align: right; white-space: nowrap; border-top: 1px solid var(--line); vertical-align: top;
}
thead th { background: var(--head); font-weight: 600; font-size: 12.5px; vertical-align: bottom; line-height: 1.35; }
thead small { display: block; font-weight: 400; color: var(--soft); }
.left, tbody th { text-align: left; }
tbody th { font-weight: 560; }
td.text { text-align: left; white-space: normal; min-width: 220px; overflow-wrap: anywhere; }
.slow td.text { white-space: nowrap; min-width: 0; }
td abbr { text-decoration: none; cursor: help; color: var(--soft); }
dl.facts {
  display: grid; grid-template-columns: minmax(110px, max-content) 1fr; gap: 5px 20px; margin: 0; padding: 12px 14px;
  background: var(--card); border: 1px solid var(--line); border-radius: 10px;
}
dl.facts dt { color: var(--soft); } dl.facts dd { margin: 0; overflow-wrap: anywhere; min-width: 0; }
.glossary dt { font-weight: 620; margin-top: 10px; } .glossary dd { margin: 0; }
details { margin: 10px 0; } summary { cursor: pointer; color: var(--accent); width: fit-content; }
pre {
  background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 12px 14px; overflow-x: auto;
  font: 12.5px/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, "Liberation Mono", monospace;
}
.equation {
  font-size: 15px; padding: 11px 14px; background: var(--card); border: 1px solid var(--line); border-radius: 10px;
}
footer { color: var(--soft); font-size: 12.5px; padding-top: 34px; padding-bottom: 40px; }
@media (max-width: 860px) {
  .grid { grid-template-columns: minmax(0, 1fr); }
  caption { position: sticky; left: 0; max-width: calc(100vw - 60px); }
}
@media (max-width: 520px) {
  main, header.top, footer { padding-left: 12px; padding-right: 12px; }
  .cards { grid-template-columns: 1fr 1fr; } .cards .value { font-size: 20px; }
  dl.facts { grid-template-columns: minmax(0, 1fr); gap: 0; } dl.facts dd { margin-bottom: 8px; }
  th, td { padding: 6px 9px; } figure { padding: 11px 8px 6px; }
}
@media print {
  :root, :root:not([data-theme="light"]), :root[data-theme="dark"] {"""
    + _LIGHT
    + """}
  body { background: #fff; font-size: 11px; }
  nav, button, .zoom, .skip, details.data { display: none; }
  figure, .banner, .cards li, tr { break-inside: avoid; } h2, caption, .keys { break-after: avoid; }
  h2 { margin-top: 22px; } main, header.top, footer { max-width: none; padding: 0; }
  .scroll { overflow: visible; border: 0; } th, td { padding: 3px 5px; white-space: normal; font-size: 9px; }
  td.text { min-width: 0; } .timeline { width: 160px; } code { font-size: 9px; }
  thead { display: table-header-group; }
}
"""
)


def script_words(say: Words) -> Mapping[str, str]:
    """What the script writes into the page, in its language."""
    return {
        "in": say("Zoom in"),
        "out": say("Zoom out"),
        "left": say("Earlier"),
        "right": say("Later"),
        "reset": say("Show all"),
        "data": say("Figures of this chart as a table"),
        "zoom": say("Zoom of the chart"),
    }


SCRIPT: Final = """
(() => {
  "use strict";
  const figures = JSON.parse(document.getElementById("figure-data").textContent);
  const root = document.documentElement;
  const main = document.querySelector("main");
  const words = Object.assign({
    in: "Zoom in", out: "Zoom out", left: "Earlier", right: "Later", reset: "Show all",
    data: "Figures of this chart as a table", zoom: "Zoom of the chart",
  }, JSON.parse((main && main.dataset.words) || "{}"));
  const coarse = matchMedia("(pointer: coarse)").matches;
  const narrow = matchMedia("(max-width: 520px)");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const color = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  const place = (key) => document.getElementById("plot-" + key);
  const axis = (given) => Object.assign({}, given, {
    gridcolor: given.showgrid === false ? undefined : color("--line"), linecolor: color("--line"),
    tickfont: { size: 11 }, automargin: true,
    title: given.title ? { text: given.title.text, standoff: 8, font: { size: 11.5 } } : undefined,
  });
  const themed = (layout) => {
    const made = Object.assign({}, layout, {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", dragmode: coarse ? false : "zoom",
      font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: color("--soft") },
      hoverlabel: { bgcolor: color("--card"), bordercolor: color("--line"), font: { color: color("--ink") } },
    });
    for (const name of Object.keys(made)) if (/^[xy]axis/.test(name)) made[name] = axis(made[name]);
    if (narrow.matches) made.margin = Object.assign({}, made.margin, { l: 44, r: made.yaxis2 ? 40 : 8 });
    return made;
  };
  const draw = () => {
    for (const [key, figure] of Object.entries(figures)) {
      if (place(key)) Plotly.react(place(key), figure.data, themed(figure.layout),
        { responsive: true, displaylogo: false, displayModeBar: false, scrollZoom: false });
    }
  };

  // Charts over time show the same span: zooming one zooms all of them.
  const timed = Object.keys(figures).filter((key) => figures[key].layout.meta === "time" && place(key));
  const show = (key, range) => {
    const change = range ? { "xaxis.range": range.slice() } : { "xaxis.autorange": true };
    if (!range && figures[key].layout.xaxis.range) change["xaxis.range"] = figures[key].layout.xaxis.range.slice();
    if (change["xaxis.range"]) delete change["xaxis.autorange"];
    return Plotly.relayout(place(key), change);
  };
  let moving = false;
  const zoom = (key, range) => {
    moving = true;
    return Promise.all((timed.includes(key) ? timed : [key]).map((each) => show(each, range)))
      .finally(() => { moving = false; });
  };
  const step = (key, what) => {
    if (what === "reset") return zoom(key, null);
    const [low, high] = place(key)._fullLayout.xaxis.range.map(Number);
    const width = high - low;
    const by = { in: [width / 4, -width / 4], out: [-width / 2, width / 2],
      left: [-width / 4, -width / 4], right: [width / 4, width / 4] }[what];
    return zoom(key, [low + by[0], high + by[1]]);
  };
  const signs = { in: "+", out: "\u2212", left: "\u2190", right: "\u2192", reset: "\u21ba" };
  const keys = { "+": "in", "=": "in", "-": "out", ArrowLeft: "left", ArrowRight: "right", "0": "reset" };
  const controls = (key, title) => {
    const bar = document.createElement("div");
    bar.className = "zoom"; bar.setAttribute("role", "group");
    bar.setAttribute("aria-label", words.zoom + ": " + title);
    for (const [what, sign] of Object.entries(signs)) {
      const button = document.createElement("button");
      button.type = "button"; button.textContent = sign; button.title = words[what];
      button.setAttribute("aria-label", words[what]);
      button.addEventListener("click", () => step(key, what));
      bar.append(button);
    }
    bar.addEventListener("keydown", (event) => {
      if (keys[event.key] && !event.ctrlKey && !event.metaKey && !event.altKey) {
        event.preventDefault(); step(key, keys[event.key]);
      }
    });
    return bar;
  };

  // What a chart shows as a table, made when somebody opens it.
  const cell = (tag, value) => {
    const made = document.createElement(tag);
    made.textContent = value === null || value === undefined ? "\u2013" : value;
    return made;
  };
  const plain = (label) => new DOMParser().parseFromString(label || "", "text/html").documentElement.textContent;
  const fill = (box, key, title) => {
    const figure = figures[key], table = document.createElement("table");
    table.append(Object.assign(document.createElement("caption"), { textContent: title }));
    const columns = new Map();
    for (const trace of figure.data) {
      const values = new Map();
      Array.from(trace.x).forEach((x, at) => values.set(x, trace.text ? trace.text[at] : trace.y[at]));
      columns.set(plain(trace.name), values);
    }
    const rows = new Set();
    for (const values of columns.values()) for (const x of values.keys()) rows.add(x);
    const ordered = Array.from(rows);
    if (ordered.every((x) => typeof x === "number")) ordered.sort((a, b) => a - b);
    const head = document.createElement("tr");
    for (const name of [(figure.layout.xaxis.title || {}).text || "", ...columns.keys()]) {
      const made = cell("th", name); made.scope = "col"; head.append(made);
    }
    table.createTHead().append(head);
    const body = table.createTBody();
    for (const x of ordered) {
      const row = document.createElement("tr"), first = cell("th", x);
      first.scope = "row"; row.append(first);
      for (const values of columns.values()) row.append(cell("td", plain(String(values.get(x) ?? "\u2013"))));
      body.append(row);
    }
    const scroll = document.createElement("div");
    scroll.className = "scroll"; scroll.tabIndex = 0; scroll.setAttribute("role", "region");
    scroll.setAttribute("aria-label", words.data + ": " + title);
    scroll.append(table); box.append(scroll);
  };

  draw();
  for (const key of Object.keys(figures)) {
    const at = place(key);
    if (!at) continue;
    const title = at.parentElement.querySelector("h3").textContent;
    at.parentElement.prepend(controls(key, title));
    const box = document.createElement("details");
    box.className = "data";
    box.append(Object.assign(document.createElement("summary"), { textContent: words.data }));
    box.addEventListener("toggle", () => { if (box.open && !box.querySelector("table")) fill(box, key, title); });
    at.parentElement.append(box);
    at.on("plotly_relayout", (change) => {
      if (moving || !timed.includes(key)) return;
      const whole = change["xaxis.autorange"] || change["xaxis.range"] === null;
      const range = change["xaxis.range"] || [change["xaxis.range[0]"], change["xaxis.range[1]"]];
      if (whole) zoom(key, null);
      else if (range[0] !== undefined) zoom(key, range.map(Number));
    });
  }

  const theme = document.getElementById("theme");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : dark.matches);
  if (theme) {
    theme.hidden = false;
    const tell = () => theme.setAttribute("aria-pressed", String(isDark()));
    tell();
    theme.addEventListener("click", () => { root.dataset.theme = isDark() ? "light" : "dark"; tell(); draw(); });
    dark.addEventListener("change", tell);
  }
  dark.addEventListener("change", draw);
  narrow.addEventListener("change", draw);
  // Paper is white whatever the screen is.
  let before;
  addEventListener("beforeprint", () => { before = root.dataset.theme; root.dataset.theme = "light"; draw(); });
  addEventListener("afterprint", () => {
    if (before === undefined) delete root.dataset.theme; else root.dataset.theme = before;
    draw();
  });
})();
"""
