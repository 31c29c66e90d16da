"""The page in two languages: no fixed word is missing in a table, and no English is left on a Chinese page."""

from __future__ import annotations

import ast
import re
import string
from collections.abc import Callable, Iterator
from pathlib import Path

import metrics_turns as make
import msgspec
import pytest
from baseline_runs import RELATIVE, side
from click.testing import CliRunner
from records_sample import plan, records, write_run
from series_sample import engine_rows, gpu_rows
from test_report import Page, check_page

from infersiege.cli.report import report
from infersiege.gate.built_in import BUILT_IN
from infersiege.gate.relative import against, with_baseline
from infersiege.metrics.batch import batches
from infersiege.metrics.definitions import METRICS
from infersiege.metrics.summary import summarise
from infersiege.quality.collapse import COLLAPSE_FLAGS
from infersiege.records import ErrorClass, Verdict
from infersiege.report import Rebuilt, delivered, judged, latency, quality_html, read, words
from infersiege.report.details import Details
from infersiege.report.event_words import EVENT_WORDS
from infersiege.report.glossary_zh import CHINESE_METRICS
from infersiege.report.headline import VERDICTS
from infersiege.report.html import render
from infersiege.report.latency import DUE_TITLE
from infersiege.report.rules_html import WORDS_AS_UNITS
from infersiege.report.slow_html import PHASES
from infersiege.report.stages import DASHBOARDS, ENGINE_FIGURES, GPU_FIGURES, unwatched
from infersiege.report.tables import STOPPED
from infersiege.report.words import CHINESE, ENGLISH, LANGUAGES
from infersiege.report.words_zh import CHINESE_WORDS
from infersiege.report.words_zh_charts import CHINESE_CHART_WORDS
from infersiege.resources import limit

TABLE = CHINESE.table
MODULES = Path(words.__file__).parent

LIMITS = (
    limit.CLIENT, limit.QUOTA, limit.KV_CACHE, limit.QUEUE, limit.POWER, limit.BANDWIDTH, limit.COMPUTE,
    limit.NOT_CLEAR,
)  # fmt: skip

TABLES: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("EVENT_WORDS", tuple(EVENT_WORDS.values()), "what happens in a run"),
    ("VERDICTS", tuple(why for _, why in VERDICTS.values()), "why a verdict is what it is"),
    ("verdicts", tuple(one.value.upper() for one in Verdict), "in the banner and in the table of rules"),
    ("BUILT_IN", BUILT_IN, "rules that are always on"),
    ("why", (*latency.WHY_MISSING.values(), latency.UNTOLD), "why there is no figure"),
    ("units", tuple(dict.fromkeys(one.unit for one in METRICS.values())), "beside each metric"),
    ("units of rules", WORDS_AS_UNITS, "units that are words"),
    ("PHASES", tuple(said for _, said in PHASES), "the timeline of a turn"),
    ("DASHBOARDS", tuple(title for _, title in DASHBOARDS), "links"),
    ("titles", tuple(one.title for one in METRICS.values()), "names of metrics have their Chinese beside them"),
    ("stages", tuple(name for one in (*ENGINE_FIGURES, *GPU_FIGURES) for name in one[:2] if name), "heads of tables"),
    ("delivered", tuple(name for one in delivered._COLUMNS for name in one[:2] if name), "heads of tables"),
    ("titles of tables", (delivered.TITLE, DUE_TITLE, STOPPED), "shared with the terminal"),
    ("unwatched", (unwatched(True), unwatched(False)), "the section on hardware"),
    ("limits", LIMITS, "what limited a stage"),
    ("collapsed answers", quality_html._TITLES, "heads of a table"),
)
"""(name, words, where) of everything that is said by a name and not where it stands."""


def spoken() -> Iterator[tuple[str, str]]:
    """(words, module) of each `say("…")` in the package."""
    for path in sorted(MODULES.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) == "say":
                first = node.args[0]
                if isinstance(first, ast.Constant):
                    assert isinstance(first.value, str)
                    yield first.value, path.name


def fields(text: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(text) if name is not None}


def test_no_word_is_missing_in_chinese() -> None:
    found = set(spoken())
    assert len(found) > 200, "the words of the page were found at all"
    assert sorted((said, where) for said, where in found if said not in TABLE) == []


@pytest.mark.parametrize(("name", "said", "why"), TABLES)
def test_no_word_of_a_table_is_missing_in_chinese(name: str, said: tuple[str, ...], why: str) -> None:
    assert said, name
    assert [one for one in said if one not in TABLE] == [], why


def test_no_chinese_word_is_left_over() -> None:
    known = {said for said, _ in spoken()} | {one for _, said, _ in TABLES for one in said}
    assert sorted(set(TABLE) - known) == []


def test_no_word_is_in_both_parts_of_the_table() -> None:
    assert set(CHINESE_WORDS) & set(CHINESE_CHART_WORDS) == set()


def test_the_same_fields_are_filled_in_both_languages() -> None:
    assert [english for english, chinese in TABLE.items() if fields(english) != fields(chinese)] == []


def test_every_metric_is_explained_in_chinese() -> None:
    assert set(CHINESE_METRICS) == set(METRICS)
    assert all(re.search("[\u4e00-\u9fff]", text) for text in CHINESE_METRICS.values())


def test_names_of_metrics_stay_english_terms() -> None:
    assert [one.title for one in METRICS.values() if not CHINESE(one.title).startswith(one.title)] == []


def test_english_needs_no_table() -> None:
    assert ENGLISH("turn {n}", n=3) == "turn 3" and CHINESE("turn {n}", n=3) == "第 3 轮"
    assert CHINESE("nobody ever translated this {n}", n=1) == "nobody ever translated this 1"


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Rebuilt:
    run = write_run(tmp_path_factory.mktemp("runs") / "run", records(24, steady_s=120), steady_s=120)
    run.write_series("gpu.jsonl", gpu_rows(2, seconds=155, lost=(1, 60, 100)))
    run.write_series("engine.jsonl", engine_rows(seconds=155))
    return judged(read(run), gated=True)


def page_of(found: Rebuilt, language: str) -> str:
    parts = (found.summary, found.plan, found.windows, found.collected, found.events, found.watched, found.details)
    return render(*parts, LANGUAGES[language])


class Foreign(Page):
    """Text of a page that is not marked as English, and what is spoken of its elements."""

    def __init__(self, source: str) -> None:
        self.own: list[str] = []
        self.english = 0
        self.marks: list[bool] = []
        super().__init__(source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag not in self.VOID:
            self.marks.append(given.get("lang") == "en" or tag in ("code", "pre", "script", "style"))
            self.english += self.marks[-1]
        if not self.english:
            self.own += [given[name] or "" for name in ("aria-label", "title") if name in given]
        super().handle_starttag(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        super().handle_endtag(tag)
        self.english -= self.marks.pop()

    def handle_data(self, data: str) -> None:
        super().handle_data(data)
        if not self.english:
            self.own.append(data)


def test_no_sentence_of_ours_is_english_on_a_chinese_page(found: Rebuilt) -> None:
    source = page_of(found, "zh")
    page = check_page(source)
    assert ("html", {"lang": "zh-Hans"}) in page.elements
    own = "\n".join(Foreign(source).own)
    sentences = [said for said, chinese in TABLE.items() if len(said.split()) >= 3 and said != chinese]
    titles = " ".join(one.title.lower() for one in METRICS.values())
    assert [
        said for said in sentences if said.lower() not in titles and re.search(rf"\b{re.escape(said)}\b", own)
    ] == []
    assert "每个指标及其公式" in page.text and "first_token_ns - sent_ns" in page.text


# fmt: off
TERMS = frozenset((
    "TTFT", "TPOT", "E2E", "TTFA", "ITL", "TLS", "CPU", "GPU", "SM", "KV", "HTTP", "DRAM", "Grafana", "InfluxDB",
    "Wilson", "infersiege", "UTC", "ms", "min", "GiB", "kernel", "token", "tokens", "turns", "sessions", "x-request-id",
))
# fmt: on
"""What stays as it is in Chinese texts of the field: names, units, terms of GPUs."""
LATIN = re.compile(r"[A-Za-z][A-Za-z0-9_-]*[A-Za-z_-][A-Za-z0-9_-]*")


def names_of(found: Rebuilt) -> set[str]:
    """Words that the run itself brings: of its plan, workers and GPUs, what its servers said they are, and the words of
    its records and rules: classes of errors, keys of metrics."""
    summary, file = found.summary, found.plan
    told: list[object] = [file.name, file.run_id, file.host, [one.name for one in file.stages]]
    told += [(name, one.engine, one.model, one.dialect, one.version) for name, one in file.channels.items()]
    told += [(one.scenario, one.channel, one.replica) for one in (*summary.groups, *summary.replicas)]
    told += [(one.worker, one.host) for one in summary.workers]
    told += [(one.scenario, one.trace, one.format) for one in summary.traces]
    told += [one.set for one in summary.quality]
    told += [tuple(one.prompts) for one in (summary.unscored,) if one is not None]
    told += [tuple(one.failed) for one in summary.quality]
    told += [(one.session_id, one.worker, one.replica, one.channel) for one in found.details.slowest("ttft")]
    told += [(one.session_id, one.worker, one.replica, one.channel) for one in found.details.slowest("e2e")]
    told += [one.worker for one in found.events]
    told += [file.plan.get("labels"), list(ErrorClass), list(METRICS)]
    told += [tuple(one.tags.values()) for one in (*found.watched.gpus, *found.watched.engines)]
    return set(LATIN.findall(str(told)))


def words_of_ours(said: str, found: Rebuilt) -> list[str]:
    """English words of a text on a Chinese page that are neither the run's nor a translator's."""
    known = TERMS | names_of(found) | {word for one in TABLE.values() for word in LATIN.findall(one)}
    known |= {word for one in CHINESE_METRICS.values() for word in LATIN.findall(one)}
    return [word for word in LATIN.findall(said) if word not in known and not re.fullmatch(r"p\d+(_\d)?", word)]


def gated(found: Rebuilt) -> Rebuilt:
    """With rules against a baseline, all changed for the worse."""
    compared = against(RELATIVE, side("new", 1.08), side("old"))
    return msgspec.structs.replace(found, summary=with_baseline(found.summary, compared))


def broken(found: Rebuilt) -> Rebuilt:
    """Not to be trusted, stopped, with answers of every kind that is told."""
    rows = [
        make.turn(scenario="quality", quality="pass facts/a"),
        make.turn(scenario="quality", quality="fail facts/b: json"),
        make.turn(scenario="quality", quality="unscored facts/c: callable"),
        *(make.turn(flags=(flag,)) for flag in COLLAPSE_FLAGS),
    ]
    of_answers = summarise(rows, make.facts(checked=frozenset({"quality"})))
    shown = msgspec.structs.replace(
        found.summary,
        quality=of_answers.quality,
        unscored=of_answers.unscored,
        answers=of_answers.answers,
        invalid=("load not delivered: half of it",),
        interrupted=True,
        groups=(*found.summary.groups, *of_answers.groups),
    )
    collapsed = Details()
    for batch in batches(rows):
        collapsed.add_batch(batch)
    details = msgspec.structs.replace(found.details, collapsed=collapsed.collapsed)
    return msgspec.structs.replace(found, summary=shown, details=details)


@pytest.mark.parametrize("kind", [gated, broken])
def test_every_word_of_ours_on_a_chinese_page_is_in_the_table(
    found: Rebuilt, kind: Callable[[Rebuilt], Rebuilt]
) -> None:
    shown = kind(found)
    source = page_of(shown, "zh")
    page = Foreign(source)
    left = {said: words for said in page.own if (words := words_of_ours(said, shown))}
    assert left == {}
    drawn = [
        str(said)
        for figure in page.figures.values()
        for said in (
            *(trace.get("name", "") for trace in figure["data"]),
            *(axis.get("title", {}).get("text", "") for key, axis in figure["layout"].items() if "axis" in key),
        )
    ]
    assert len(drawn) > 40 and [said for said in drawn if words_of_ours(said, shown)] == []


def test_an_english_word_that_nobody_translated_is_seen(found: Rebuilt) -> None:
    assert words_of_ours("负载 was late", found) == ["was", "late"]


def test_both_pages_have_the_same_figures(found: Rebuilt) -> None:
    english, chinese = check_page(page_of(found, "en")), check_page(page_of(found, "zh"))
    assert set(english.figures) == set(chinese.figures)
    for key, figure in english.figures.items():
        drawn = [(trace["x"], trace["y"]) for trace in figure["data"]]
        assert drawn == [(trace["x"], trace["y"]) for trace in chinese.figures[key]["data"]], key
    assert [tag for tag, _ in english.elements] == [tag for tag, given in chinese.elements if given.get("lang") != "en"]


def test_report_command_writes_the_language_that_is_asked_for(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", records(4, steady_s=60), plan(), steady_s=60)
    for language, lang in (("zh", "zh-Hans"), ("en", "en")):
        done = CliRunner().invoke(report, [str(run.path), "--language", language])
        assert done.exit_code == 0, done.output
        assert f'<html lang="{lang}">' in run.report_path.read_text(encoding="utf-8")
    assert CliRunner().invoke(report, [str(run.path), "--language", "fr"]).exit_code == 2
