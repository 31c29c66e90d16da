"""`infersiege traces inspect` as people call it: text, JSON, a page; and what it never shows."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
from click.testing import CliRunner, Result

from infersiege.cli import infersiege, main
from infersiege.report.page import POLICY
from infersiege.report.schema import text_of
from infersiege.report.trace_schema import NAME, schema
from infersiege.traces.inspection.describe import Description

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples" / "traces"
KEYS = {
    *("format", "rows", "sessions", "turns", "span_s", "mean_rate", "peak_rate", "distinct_arrivals"),
    *("interarrival_cv", "input_tokens", "output_tokens", "turns_per_session", "prefix_hit_bound", "prefix_share"),
    "skipped",
}
"""Promised by name."""


def inspect(*arguments: str | Path, width: int = 100) -> Result:
    return CliRunner(env={"COLUMNS": str(width)}).invoke(infersiege, ["traces", "inspect", *map(str, arguments)])


def figures(*arguments: str | Path) -> dict[str, Any]:
    done = inspect(*arguments, "--json")
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout, parse_constant=pytest.fail)
    return found


def refused(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    """What the command says when it ends with 2: one line, and perhaps a hint."""
    with pytest.raises(SystemExit) as caught:
        main(["traces", "inspect", *map(str, arguments)])
    out, said = capsys.readouterr()
    assert caught.value.code == 2, said
    assert out == ""
    lines = said.splitlines()
    assert lines[0].startswith("error: ") and all(line.startswith("hint: ") for line in lines[1:]), said
    return said


def mooncake(path: Path, *rows: tuple[float, int, list[int]]) -> Path:
    lines = [
        json.dumps({"timestamp": at, "input_length": length, "output_length": 5, "hash_ids": ids})
        for at, length, ids in rows
    ]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


# ------------------------------------------------------------------------------------------------------ figures


def test_the_promised_keys_are_there_and_absent_is_null() -> None:
    found = figures(EXAMPLES / "tau-bench.json")
    assert found.keys() >= KEYS
    assert {found[key] for key in ("span_s", "mean_rate", "peak_rate", "distinct_arrivals", "interarrival_cv")} == {
        None
    }
    assert found["estimated"] is True
    for name in ("input_tokens", "output_tokens"):
        assert found[name].keys() >= {"mean", "p50", "p90", "p99", "max"}


def test_figures_of_a_file_by_hand(tmp_path: Path) -> None:
    """Four rows of 512-token blocks: 512 of 1,024 + 512 of 1,536 tokens were there before."""
    path = mooncake(tmp_path / "m.jsonl", (0, 1024, [1, 2]), (0, 1024, [1, 3]), (1000, 1536, [1, 3, 4]), (4000, 9, [5]))
    found = figures(path)
    assert (found["format"], found["rows"], found["sessions"], found["turns"]) == ("mooncake", 4, 4, 4)
    assert (found["span_s"], found["mean_rate"], found["peak_rate"], found["distinct_arrivals"]) == (4, 0.75, 2, 3)
    assert found["input_tokens"]["max"] == 1536 and found["output_tokens"]["mean"] == 5
    assert found["prefix_hit_bound"] == pytest.approx((512 + 1024) / (1024 + 1024 + 1536 + 9))
    assert (found["prefix_share"], found["turns_per_session"], found["skipped"]) == (0, 1, {})


@pytest.mark.parametrize("path", sorted(EXAMPLES.iterdir()), ids=lambda path: path.name)
def test_every_format_can_be_inspected(path: Path, tmp_path: Path) -> None:
    """Real output fits the published schema; every page is drawn, also where nearly nothing is known."""
    options = ["--format", path.name.split(".")[0]]
    options += ["--option", "rows=cumulative"] if "cumulative" in path.name else []
    found = figures(path, *options, "--html", tmp_path / "page.html")
    jsonschema.Draft202012Validator(schema()).validate(found)
    assert found["format"] == path.name.split(".")[0]
    assert found["turns"] == (found["session_turns"] or {"n": 0})["n"] * (found["turns_per_session"] or 0)
    assert msgspec.convert(found, Description).line() in inspect(path, *options).stdout
    assert (tmp_path / "page.html").stat().st_size > 1_000_000, "with its script inside"


def test_committed_schema_is_current() -> None:
    written = (ROOT / "docs" / "schema" / "traces" / NAME).read_text(encoding="utf-8")
    assert written == text_of(schema()), "run `python -m infersiege.report.trace_schema docs/schema/traces`"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(schema()).validate({})


def test_the_page_of_the_command_defines_every_key() -> None:
    """docs/traces-inspect.md."""
    page = (ROOT / "docs" / "traces-inspect.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(\w+)`", page))
    keys = figures(EXAMPLES / "mooncake.jsonl").keys()
    assert sorted(keys - named) == []
    context = figures(EXAMPLES / "mooncake.jsonl")["context"][0].keys() - {"limit_tokens"}
    assert sorted(context - named) == []


def test_what_is_not_known_is_said_in_words() -> None:
    text = inspect(EXAMPLES / "azure.csv").stdout
    assert "infinite-cache hit bound not known" in text
    assert "the trace has no times" in inspect(EXAMPLES / "tau-bench.json").stdout
    assert "about 4 a token" in inspect(EXAMPLES / "tau-bench.json").stdout


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_tables_fit_the_terminal(width: int) -> None:
    done = inspect("builtin:agent", "--sessions", "5", width=width)
    tables = done.stdout.partition("Distributions")[2].splitlines()
    assert max(len(line.rstrip()) for line in tables) <= width
    assert "…" not in "".join(tables[3:]) or width < 60


def test_distributions_are_one_table_at_60_columns() -> None:
    """With thousands of turns of a hundred thousand tokens; the same figures as in the wide one."""
    found = {width: inspect("builtin:agent", "--sessions", "60", width=width).stdout for width in (60, 100)}
    tables = {width: text.partition("Distributions")[2].partition("What a")[0] for width, text in found.items()}
    assert [tables[width].count("─ ") for width in (60, 100)] == [1, 1]
    lines = {width: [line.split() for line in tables[width].splitlines() if line.strip()] for width in (60, 100)}
    narrow = {stat: cells for stat, *cells in lines[60] if stat in ("n", "mean", "p50", "p90", "p99", "max")}
    wide = [line[-6:] for line in lines[100] if re.fullmatch(r"[\d.,]+", line[-1])]
    assert len(wide) == 7
    assert [list(column) for column in zip(*narrow.values(), strict=True)] == wide


def test_context_limits_and_what_they_leave(tmp_path: Path) -> None:
    path = mooncake(tmp_path / "m.jsonl", (0, 1024, [1, 2]), (9, 1536, [1, 3, 4]), (20, 100, [1]))
    found = figures(path, "--context-limit", "1k", "--context-limit", "1029", "--context-limit", "8K")
    assert [fit["limit_tokens"] for fit in found["context"]] == [1024, 1029, 8192]
    assert [fit["sessions_dropped"] for fit in found["context"]] == [2, 1, 0]
    assert [fit["input_mean"] for fit in found["context"]] == [100, 562, pytest.approx(886.67, abs=0.01)]
    assert (found["longest"]["source_line"], found["longest"]["input_tokens"]) == (2, 1536)


def test_delay_cap() -> None:
    capped = figures("builtin:agent", "--sessions", "20", "--delay-cap", "10s")["delays"]
    assert capped["cap_s"] == 10 and 0.3 < capped["capped_share"] < 0.7 and 0 < capped["removed_share"] < 1
    assert figures("builtin:agent", "--sessions", "20", "--delay-cap", "24h")["delays"]["capped_turns"] == 0


def test_built_in_workloads_and_their_options() -> None:
    found = figures("builtin:agent", "--sessions", "7", "--option", "calls=3", "--option", "calls_sigma=0")
    assert (found["rows"], found["sessions"], found["sampled"], found["turns_per_session"]) == (None, None, 7, 3)
    limited = figures("builtin:short-qa", "--limit", "9", "--language", "zh", "--seed", "4", "--output-scale", "2")
    assert (limited["sessions"], limited["sampled"]) == (9, 9)
    plain = figures("builtin:short-qa", "--limit", "9", "--seed", "4")
    assert limited["output_tokens"]["mean"] == pytest.approx(2 * plain["output_tokens"]["mean"], rel=0.05)


def test_a_plan_is_inspected_workload_by_workload(tmp_path: Path) -> None:
    shutil.copy(EXAMPLES / "mooncake.jsonl", tmp_path / "trace.jsonl")
    plan = tmp_path / "plan.toml"
    plan.write_text(
        '[channel.a]\nengine = "vllm"\nbase_url = "http://127.0.0.1:9/v1"\nmodel = "m"\napi_key_env = "NOT_SET"\n'
        '[run]\nduration = "1m"\n[load]\nusers = 1\n'
        '[[workload]]\nscenario = "qa"\ntrace = "builtin:short-qa"\ncontext_limit = 4000\n'
        '[[workload]]\nscenario = "hashes"\ntrace = "trace.jsonl"\n',
        encoding="utf-8",
    )
    found = figures(plan, "--sessions", "10")["workloads"]
    assert [row["scenario"] for row in found] == ["qa", "hashes"]
    assert [fit["limit_tokens"] for fit in found[0]["trace"]["context"]] == [4000]
    assert found[1]["trace"]["format"] == "mooncake"
    text = inspect(plan).stdout
    assert "clip" not in text and found[0]["trace"]["context"][0]["turns_clipped"] is None
    said = plan.read_text(encoding="utf-8").replace("context_limit = 4000", 'context_limit = 400\ntoo_long = "clip"')
    plan.write_text(said, encoding="utf-8")
    clipped = figures(plan, "--sessions", "10")["workloads"][0]["trace"]["context"][0]
    assert clipped["turns_clipped"] == clipped["sessions_cut"] > 0
    assert (
        f"too_long = clip: at 400 tokens {clipped['turns_clipped']} prompts are cut"
        in inspect(plan, "--sessions", "10").stdout
    )
    assert text.index("qa\n") < text.index("builtin:short-qa") < text.index("hashes\n")


# ------------------------------------------------------------------------------------------------------- errors

ERRORS = [
    (["nothing.jsonl"], "error: nothing.jsonl: no such trace file", "the file is not there"),
    (["builtin:agnet"], "error: built-in workload 'agnet' is unknown", "and the nearest name is in the hint"),
    (["{mooncake}", "--format", "moon"], "error: trace format 'moon' is unknown", "unknown format"),
    (["{mooncake}", "--option", "unit"], "error: --option unit: not of the form KEY=VALUE", "no value"),
    (["{mooncake}", "--option", "unti=s"], "option 'unti' is unknown, did you mean 'unit'?", "unknown option"),
    (["builtin:agent", "--language", "fr"], "language 'fr' is unknown", "unknown language"),
    (["builtin:agent", "--context-limit", "32kb"], "error: --context-limit 32kb: not a number of tokens", "a slip"),
    (["builtin:agent", "--context-limit", "0"], "error: --context-limit 0: not a number of tokens", "no context"),
    (["builtin:agent", "--delay-cap", "60"], "error: --delay-cap 60: '60' has no unit", "no unit"),
    (["builtin:agent", "--length-scale", "nan"], "error: --length-scale nan: not a number above 0", "no number"),
    (["builtin:agent", "--output-scale", "-1"], "error: --output-scale -1: not a number above 0", "less than none"),
    (["builtin:agent", "--sessions", "0"], "error: invalid value for '--sessions': 0 is not", "of click"),
    (["p.toml", "--html", "x.html"], "error: --html: not with a plan", "its workloads say how"),
    (["p.toml", "--option", "a=1", "--seed", "2"], "error: --option, --seed: not with a plan", "all at once"),
    (["p.toml"], "error: p.toml: ", "a plan that is not there"),
    (["builtin:agent", "--sessions", "1", "--html", "no/where/x.html"], "error: no/where/x.html: can't be written", ""),
    (["builtin:agent", "--html", "-"], "error: --html -: the figures go to standard output", "two things at one place"),
    (["builtin:agent", "--html", "."], "error: no file is named to write to", "a folder"),
    ([""], "error: no trace is named", "an empty variable of a script read the current folder"),
    (["p.toml", "--html", "x.html", "--force"], "error: --html, --force: not with a plan", "nor is its --force"),
]


@pytest.mark.parametrize(("arguments", "line", "why"), ERRORS, ids=[" ".join(row[0]) for row in ERRORS])
def test_each_mistake_is_one_line_and_code_2(
    arguments: list[str], line: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [word.format(mooncake=EXAMPLES / "mooncake.jsonl") for word in arguments]
    assert line in refused(capsys, *given).splitlines()[0], why


def test_tr_03_a_unit_that_was_misread_stops_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """TR-03: timestamps 0.0, 0.2, 0.4 read as ms are 5,000 requests a second; the option names the unit."""
    path = mooncake(tmp_path / "m.jsonl", (0.0, 5, [1]), (0.2, 5, [1]), (0.4, 5, [1]))
    said = refused(capsys, path)
    assert "5000 per second on average" in said and 'options.unit = "s"' in said
    right = inspect(path, "--option", "unit=s").stdout
    assert "3 rows, 3 sessions, span 0.4 s, mean 5/s, peak 3/s" in right, "the sanity line"
    hours = mooncake(tmp_path / "h.jsonl", (0, 5, [1]), (10_535, 5, [1]), (27_482, 5, [1]))
    assert "span 27.5 s, mean 0.073/s" in inspect(hours).stdout


def test_tr_12_few_rows_are_said_with_the_repeat_factor(tmp_path: Path) -> None:
    """TR-12: 10 rows, 1,000 requests."""
    path = mooncake(tmp_path / "m.jsonl", *((1000 * n, 5, [n]) for n in range(10)))
    assert "warning: 1,000 sessions take each of the 10 100 times" in inspect(path, "--sessions", "1000").stderr
    assert "warning: 10 sessions are few" in inspect(path).stderr


def test_tr_14_lengths_are_the_traces_own_where_it_has_them(tmp_path: Path) -> None:
    """TR-14: rows of 100, 200 and 300 tokens, whatever their text is; without a length it is an estimate and said."""
    rows = [{"timestamp": n, "input_length": n, "output_length": 1, "text_input": "word"} for n in (100, 200, 300)]
    path = tmp_path / "m.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    found = figures(path)
    assert (found["estimated"], found["input_tokens"]["mean"], found["input_tokens"]["max"]) == (False, 200, 300)
    for row in rows:
        del row["input_length"]
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    found = figures(path)
    assert (found["estimated"], found["input_tokens"]["mean"]) == (True, 1)


# --------------------------------------------------------------------------------------------------- private data

KEY, MAIL, PHRASE = "sk-test-000", "jane.doe@example.org", "the quick brown secret"
PRIVATE = f"{PHRASE} {KEY} {MAIL}"


def private_rows() -> list[dict[str, Any]]:
    call = {"id": MAIL, "type": "function", "function": {"name": "send", "arguments": json.dumps({"to": PRIVATE})}}
    tool = {"type": "function", "function": {"name": "send", "description": PRIVATE, "parameters": {"type": "object"}}}
    return [
        {
            "messages": [
                {"role": "system", "content": PRIVATE},
                {"role": "user", "content": [{"type": "text", "text": PRIVATE}]},
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": MAIL, "content": PRIVATE},
                {"role": "assistant", "content": PRIVATE},
            ],
            "tools": [tool],
        },
        {"messages": [{"role": "system", "content": PRIVATE}]},
    ]


WRONG = [
    ("a row that is skipped", ""),
    ("a message of a wrong type", json.dumps({"messages": PRIVATE})),
    ("a role that is none", json.dumps({"messages": [{"role": PRIVATE, "content": PRIVATE}]})),
    ("no JSON", '{"messages": [{"role": "user", "content": "' + PRIVATE),
]


@pytest.mark.parametrize(("why", "row"), WRONG, ids=[row[0] for row in WRONG])
def test_tr_15_no_text_of_the_trace_is_in_any_output(
    why: str, row: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """TR-15: a trace with a key and a mail address; in no output, also not where a row is wrong."""
    path, page = tmp_path / "t.jsonl", tmp_path / "page.html"
    lines = [json.dumps(one) for one in private_rows()] + ([row] if row else [])
    path.write_text("\n".join(lines), encoding="utf-8")
    outputs: list[str] = []
    for arguments in (["--html", str(page)], ["--json"]):
        with pytest.raises(SystemExit):
            main(["traces", "inspect", str(path), *arguments])
        outputs += capsys.readouterr()
    assert any(outputs), why
    if not row:
        outputs.append(page.read_text(encoding="utf-8"))
        assert '"skipped": {\n    "no_user_message": 1' in outputs[2]
    for text in outputs:
        for private in (KEY, MAIL, PHRASE, "jane.doe"):
            assert private not in text, why


def test_tr_15_private_session_ids_are_not_shown(tmp_path: Path) -> None:
    rows = [{"session_id": MAIL, "messages": [{"role": "user", "content": PRIVATE}]}]
    path = tmp_path / "t.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    done = inspect(path, "--option", "rows=cumulative", "--json")
    assert done.exit_code == 0 and MAIL not in done.output and KEY not in done.output


# --------------------------------------------------------------------------------------------------------- page


class Addresses(HTMLParser):
    """Everything that a browser would fetch, and the policy that forbids it."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.policy = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.fetched += [value for name in ("src", "href", "data", "action") if (value := given.get(name)) is not None]
        if given.get("http-equiv") == "Content-Security-Policy":
            self.policy = given["content"] or ""


def test_the_page_fetches_nothing_and_has_the_reports_policy(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert inspect("builtin:agent", "--sessions", "20", "--html", page).exit_code == 0
    seen = Addresses()
    seen.feed(page.read_text(encoding="utf-8"))
    assert (seen.fetched, seen.policy) == ([], POLICY)


def test_the_page_is_written_whole_and_over_another_only_with_force(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    page.write_text("mine", encoding="utf-8")
    assert "is there already\nhint: --force" in refused(capsys, tmp_path / "no.jsonl", "--html", page), (
        "before the work"
    )
    assert page.read_text(encoding="utf-8") == "mine"
    assert inspect("builtin:agent", "--sessions", "2", "--html", page, "--force").exit_code == 0
    assert page.stat().st_size > 1_000_000
    full = Path("/dev/full")
    if full.is_char_device():
        said = refused(capsys, "builtin:agent", "--sessions", "2", "--html", full)
        assert "No space left on device\nhint: free some space" in said and full.is_char_device()
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


def test_the_page_goes_into_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read = tmp_path / "read"
    with read.open("wb") as file, subprocess.Popen(["cat", str(pipe)], stdout=file) as reader:
        assert inspect("builtin:agent", "--sessions", "2", "--html", pipe).exit_code == 0
        assert reader.wait(20) == 0
    assert read.read_bytes().endswith(b"</html>\n")
    assert pipe.is_fifo()


def test_names_are_text_on_the_page(tmp_path: Path) -> None:
    path = tmp_path / "<b>a&b.jsonl"
    shutil.copy(EXAMPLES / "mooncake.jsonl", path)
    page = tmp_path / "page.html"
    assert inspect(path, "--html", page).exit_code == 0
    head = page.read_text(encoding="utf-8").partition("<script")[0]
    assert "<b>a" not in head and "&lt;b&gt;a&amp;b.jsonl" in head


def test_the_page_does_not_grow_with_the_trace(tmp_path: Path) -> None:
    sizes = []
    for sessions in ("200", "2000"):
        page = tmp_path / f"{sessions}.html"
        assert inspect("builtin:short-qa", "--sessions", sessions, "--html", page).exit_code == 0
        sizes.append(page.stat().st_size)
    assert abs(sizes[1] - sizes[0]) < 20_000


def charts(page: Path) -> dict[str, Any]:
    text = page.read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(re.findall(r'id="figure-data">(.*?)</script>', text)[0])
    return found


def test_charts_hold_every_turn_and_say_n_and_unit(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    found = figures("builtin:agent", "--sessions", "30", "--html", page)
    drawn = charts(page)
    assert drawn.keys() == {"input", "output", "turns", "by-turn", "growth", "delays", "cache", "contexts"}
    for key, figure in (("input", "input_tokens"), ("output", "output_tokens"), ("turns", "session_turns")):
        assert sum(map(sum, (bar["y"] for bar in drawn[key]["data"]))) == found[figure]["n"], key
    delays = sum(map(sum, (bar["y"] for bar in drawn["delays"]["data"])))
    assert delays == found["delays"]["all"]["n"]
    shares = [sum(parts) for parts in zip(*(bar["y"] for bar in drawn["cache"]["data"]), strict=True)]
    assert shares == pytest.approx([1.0] * len(shares), abs=2e-3)
    text = page.read_text(encoding="utf-8")
    titles = re.findall(r"<h3>(.*?)</h3>", text)
    assert len(titles) == 9
    for title, words in zip(titles, re.findall(r"<figcaption>(.*?)</figcaption>", text), strict=True):
        if "Arrivals" not in title:
            assert re.search(r"\((tokens|turns|s|share)\b", title), title
            assert re.search(r"n [\d,]+", title + words), title


def test_arrivals_are_all_drawn(tmp_path: Path) -> None:
    path = mooncake(tmp_path / "m.jsonl", *((at * 1000, 9, [at]) for at in (0, 0, 3, 7, 100, 4000)))
    page = tmp_path / "page.html"
    assert inspect(path, "--html", page).exit_code == 0
    (bar,) = charts(page)["arrivals"]["data"]
    assert sum(bar["y"]) * 4000 / 120 == pytest.approx(6, rel=1e-3)
    assert "Arrivals over time (minutes)" in page.read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_browser_draws_the_charts(tmp_path: Path) -> None:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no chromium: the page's script was not run")
    page = tmp_path / "page.html"
    assert inspect("builtin:agent", "--sessions", "30", "--html", page).exit_code == 0
    command = [browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=5000", "--dump-dom"]
    done = subprocess.run([*command, page.as_uri()], capture_output=True, text=True, timeout=100, check=True)
    assert done.stdout.count('class="main-svg"') >= 8


@pytest.mark.slow
def test_charts_stay_in_their_cards_in_a_narrow_window(tmp_path: Path) -> None:
    """500 px: the narrowest that this browser opens without a screen."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no chromium: the page's script was not run")
    page = tmp_path / "page.html"
    assert inspect("builtin:agent", "--sessions", "30", "--html", page).exit_code == 0
    probe = """<script>document.title = JSON.stringify([innerWidth, ...[...document.querySelectorAll(".plot .main-svg")]
      .map(drawn => drawn.getBoundingClientRect().right - drawn.closest("figure").getBoundingClientRect().right)])
      </script></body></html>"""
    text = page.read_text(encoding="utf-8").replace("</body></html>", probe)
    page.write_text(text, encoding="utf-8")
    command = [browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=5000", "--dump-dom"]
    command += ["--window-size=500,900", page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    width, *over = json.loads(re.findall(r"<title>(.*?)</title>", done.stdout)[0])
    assert width <= 520 and len(over) >= 8 and max(over) <= 0
