"""The frame of report.html: its style and the script that draws the figures. No address outside of the file."""

from __future__ import annotations

from typing import Final

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

STYLE: Final = (
    """
:root {
  color-scheme: light;
  --page: #f6f7f9; --card: #ffffff; --ink: #1c2430; --soft: #5d6878; --line: #e0e4ea; --head: #f1f3f6;
  --accent: #2467ad; --good: #1a7a4c; --bad: #b3302b; --odd: #8a5a00; --wrong: #6b3fa0;
  --good-bg: #e8f5ee; --bad-bg: #fcebea; --odd-bg: #fdf4de; --wrong-bg: #f2ebfa;
}
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
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "Liberation Sans", sans-serif;
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
.emulated {
  border: 2px dashed #c98a00; color: #3a2a00; font-weight: 560;
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
  overflow-x: auto; background: var(--card); border: 1px solid var(--line); border-radius: 10px; margin: 10px 0;
}
.scroll:focus-visible, a:focus-visible, summary:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
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
@media (max-width: 860px) { .grid { grid-template-columns: minmax(0, 1fr); } }
@media (max-width: 520px) {
  main, header.top, footer { padding-left: 12px; padding-right: 12px; }
  .cards { grid-template-columns: 1fr 1fr; } .cards .value { font-size: 20px; }
  dl.facts { grid-template-columns: minmax(0, 1fr); gap: 0; } dl.facts dd { margin-bottom: 8px; }
  th, td { padding: 6px 9px; } figure { padding: 11px 8px 6px; }
}
@media print { nav { display: none; } figure, .scroll, .banner { break-inside: avoid; } body { background: #fff; } }
"""
)

SCRIPT: Final = """
(() => {
  "use strict";
  const figures = JSON.parse(document.getElementById("figure-data").textContent);
  const root = document.documentElement;
  const coarse = matchMedia("(pointer: coarse)").matches;
  const narrow = matchMedia("(max-width: 520px)");
  const color = (name) => getComputedStyle(root).getPropertyValue(name).trim();
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
      const place = document.getElementById("plot-" + key);
      if (place) Plotly.react(place, figure.data, themed(figure.layout),
        { responsive: true, displaylogo: false, displayModeBar: false, scrollZoom: false });
    }
  };
  draw();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  narrow.addEventListener("change", draw);
})();
"""
