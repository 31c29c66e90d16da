"""The page in a real browser: it complains of nothing, asks for nothing, fits a phone, and is used by keyboard."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import Browser, browser, find
from records_sample import SECOND, START_NS, plan, records, write_run
from series_sample import engine_rows, gpu_rows

from infersiege.records import EventRow
from infersiege.report import judged, read, write
from infersiege.report.page import STYLE
from infersiege.report.words import LANGUAGES

OPEN_TABLES = """
(async () => {
  const all = [...document.querySelectorAll("details.data")];
  all.forEach((one) => { one.open = true; });
  await new Promise((done) => setTimeout(done, 500));
  const odd = (cell) => /undefined|null|NaN|Object/.test(cell.textContent);
  return all.map((one) => ({
    caption: one.querySelector("caption").textContent, rows: one.querySelectorAll("tbody tr").length,
    scopes: one.querySelectorAll("th:not([scope])").length,
    empty: [...one.querySelectorAll("td, th")].filter(odd).length,
  }));
})()
"""

needs_browser = pytest.mark.skipif(find() is None, reason="there is no Chromium here")


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Language -> report.html of a run with GPUs, an engine, errors and events."""
    folder = tmp_path_factory.mktemp("runs")
    run = write_run(folder / "run", records(24, steady_s=120), plan(), steady_s=120)
    run.write_series("gpu.jsonl", gpu_rows(2, seconds=155, lost=(1, 60, 100)))
    run.write_series("engine.jsonl", engine_rows(seconds=155))
    run.append_event(EventRow(at_ns=START_NS + 60 * SECOND, kind="worker_lost", detail="<b>", worker="w1"))
    run.close()
    found = judged(read(run), gated=True)
    made = {}
    for language, say in LANGUAGES.items():
        write(run, found, say=say)
        made[language] = run.report_path.rename(folder / f"{language}.html")
    return made


@pytest.fixture(scope="module")
def tab() -> Iterator[Browser]:
    with browser() as made:
        yield made


@needs_browser
@pytest.mark.parametrize(
    ("language", "width", "dark"),
    [("en", 1280, False), ("en", 400, True), ("zh", 400, False)],
)
def test_it_complains_of_nothing_asks_for_nothing_and_fits(
    pages: dict[str, Path], tab: Browser, language: str, width: int, dark: bool
) -> None:
    tab.show(pages[language], width=width, dark=dark)
    assert tab.complaints == [] and tab.requests == []
    assert tab.evaluate("document.documentElement.scrollWidth") == width, "no scrolling sideways"
    drawn, places = tab.evaluate(
        "[document.querySelectorAll('.plot svg.main-svg').length, document.querySelectorAll('.plot').length]"
    )
    assert drawn >= places >= 20, "every chart is drawn"
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == (
        "rgb(20, 23, 27)" if dark else "rgb(246, 247, 249)"
    )


@needs_browser
def test_it_is_used_by_keyboard(pages: dict[str, Path], tab: Browser) -> None:
    tab.show(pages["en"])
    tab.press("Tab")
    assert tab.evaluate("document.activeElement.className") == "skip", "first of all, past the links"
    tab.press("Tab")
    assert tab.evaluate("document.activeElement.id") == "theme"
    tab.press("Enter", "\r")
    assert tab.evaluate("[document.documentElement.dataset.theme, document.activeElement.ariaPressed]") == [
        "dark",
        "true",
    ]

    span = "document.getElementById('plot-{}')._fullLayout.xaxis.range.map(Number)"
    low, high = tab.evaluate(span.format("load"))
    tab.evaluate("document.querySelector('#plot-load').parentElement.querySelector('.zoom button').focus()")
    tab.press("Enter", "\r")
    tab.evaluate("new Promise((done) => setTimeout(done, 300))")
    zoomed = tab.evaluate(span.format("load"))
    assert zoomed == pytest.approx([low + (high - low) / 4, high - (high - low) / 4])
    assert tab.evaluate(span.format("gpu-power")) == pytest.approx(zoomed), "all charts over time show the same span"
    tab.press("0", "0")
    tab.evaluate("new Promise((done) => setTimeout(done, 300))")
    assert tab.evaluate(span.format("gpu-power")) == pytest.approx([low, high])


@needs_browser
def test_every_chart_is_also_a_table(pages: dict[str, Path], tab: Browser) -> None:
    tab.show(pages["en"])
    opened: list[dict[str, Any]] = tab.evaluate(OPEN_TABLES)
    assert len(opened) >= 20 and all(one["caption"] and one["rows"] for one in opened)
    assert sum(one["scopes"] + one["empty"] for one in opened) == 0
    due = tab.evaluate(
        "[...document.querySelector('#plot-load').parentElement.querySelectorAll('tbody tr')]"
        ".map((r) => Number(r.children[1].textContent))"
    )
    assert due == pytest.approx(tab.evaluate("Array.from(document.getElementById('plot-load').data[0].y)"))


@needs_browser
def test_it_is_printed_on_white_paper_and_dark_again_after(pages: dict[str, Path], tab: Browser) -> None:
    tab.show(pages["en"], dark=True)
    colors = tab.evaluate(
        "(() => { const seen = []; const ink = () => getComputedStyle(document.body).color;"
        "dispatchEvent(new Event('beforeprint')); seen.push(ink()); dispatchEvent(new Event('afterprint'));"
        "seen.push(ink()); return seen; })()"
    )
    assert colors == ["rgb(28, 36, 48)", "rgb(230, 233, 238)"]
    assert len(tab.call("Page.printToPDF", printBackground=True)["data"]) > 50_000
    assert tab.complaints == []


# -------------------------------------------------------------------------------------------------------- contrast


def themes() -> list[dict[str, str]]:
    """Colours of the light and of the dark page."""
    found = [dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block)) for block in re.findall(r"\{([^{}]*)\}", STYLE)]
    return [one for one in found if "page" in one]


def luminance(color: str) -> float:
    """Of WCAG 2.2: relative luminance of `#rrggbb`."""
    parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_contrast_is_computed_as_wcag_says() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21) and contrast("#777777", "#ffffff") < 4.5


def test_words_have_contrast_in_both_themes() -> None:
    found = themes()
    assert len(found) >= 3, "light, dark by the system, dark by choice (and paper)"
    for colors in found:
        backgrounds = [colors[name] for name in ("page", "card", "head")]
        for ink, ground in itertools.product(("ink", "soft", "accent", "bad"), backgrounds):
            assert contrast(colors[ink], ground) >= 4.5, (ink, ground)
        for kind in ("good", "bad", "odd", "wrong"):
            for ink in (colors[kind], colors["ink"]):
                assert contrast(ink, colors[f"{kind}-bg"]) >= 4.5, (kind, ink)
