"""The CI files that ship: valid for their system, and their scripts run here as the runner would run them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from string import Template
from typing import Any
from xml.etree import ElementTree as ET

import pytest
import xmlschema
import yaml
from baseline_runs import write_side
from loopback_http import LoopbackHttp

from infersiege.plan.load import load_plan
from infersiege.rundir import RunDirectory

ROOT = Path(__file__).parents[1]
CI = ROOT / "examples" / "ci"
INSTALL = "python -m pip install infersiege"
FEW = (
    "--set run.duration=2s --set load.users=2 --set load.warmup=300ms --set load.drain=3s"
    " --set slo.0.min_samples=5 --set slo.1.min_samples=5"
)
"""A run that is over soon, and judged by what it then has; so few users keep no machine busy."""
BROKEN = f"{FEW} --set slo.0.max=10us --set slo.0.abort=false"
"""No answer comes so soon."""


def read(name: str) -> Any:
    return yaml.safe_load((CI / name).read_text(encoding="utf-8"))


def github_steps(name: str = "github.yml") -> dict[str, str]:
    """Scripts of a workflow's only job by the names of their steps."""
    (job,) = read(name)["jobs"].values()
    return {step["name"]: step["run"] for step in job["steps"] if "run" in step}


def gitlab_script() -> list[str]:
    job = read("gitlab.yml")["load gate"]
    return [*job["before_script"], *job["script"]]


@pytest.mark.parametrize(
    ("name", "schema"),
    [
        ("github.yml", "github-workflows"),
        ("github-baseline.yml", "github-workflows"),
        ("gitlab.yml", "gitlab-ci"),
        ("gitlab-baseline.yml", "gitlab-ci"),
    ],
)
def test_the_file_is_one_of_its_system(name: str, schema: str) -> None:
    """By the schemas that check-jsonschema brings (those of SchemaStore and of GitLab)."""
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}", str(CI / name)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout


def test_the_plan_of_the_jobs_can_be_loaded() -> None:
    slos = load_plan(CI / "plan.toml", environ={}).slos
    assert [slo.abort for slo in slos] == [True, True, False, False]
    assert [slo.min_samples for slo in slos] == [100, 100, None, 100]


def test_what_the_jobs_publish_is_what_they_write() -> None:
    """And whatever the verdict is: a run that failed is the one that people want to look at."""
    for suffix, junit in (("", "results/junit.xml"), ("-baseline", "results/run-*/junit.xml")):
        (github,) = read(f"github{suffix}.yml")["jobs"].values()
        gitlab = next(job for job in read(f"gitlab{suffix}.yml").values() if "artifacts" in job)
        published = [step for step in github["steps"] if "upload-artifact" in step.get("uses", "")]
        assert published[-1]["if"] == "always()" and gitlab["artifacts"]["when"] == "always"
        paths = {path for step in published for path in step["with"]["path"].split()}
        assert paths == set(gitlab["artifacts"]["paths"])
        assert gitlab["artifacts"]["reports"] == {"junit": junit}
        assert gitlab["retry"]["exit_codes"] == [3, 4]


def test_the_copies_of_a_command_are_the_same() -> None:
    """The load of the baselines is that of the gate but for the number of runs, on both systems."""

    def words(script: str) -> list[str]:
        return script.replace("\\\n", " ").split()

    gate = words(github_steps()["Load and gate"])
    assert words(gitlab_script()[-1]) == gate
    series = [*gate[:5], "--repeats", '"$RUNS"', *gate[gate.index("verdict.md") + 1 :]]
    assert words(github_steps("github-baseline.yml")["Load"]) == series
    job = read("gitlab-baseline.yml")
    save, against = job["save load baseline"]["script"], job["load gate against baseline"]["script"]
    assert words(save[0]) == words(against[1]) == series
    assert against[2] == github_steps("github-baseline.yml")["Gate against main"]


class Job:
    """A runner's working directory and environment, with the project's programs in PATH."""

    def __init__(self, folder: Path, port: int, options: str) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        (folder / "load").mkdir()  # as docs/ci.md says
        for name in ("plan.toml", "against.sh"):
            shutil.copy(CI / name, folder / "load" / name)
        self.step_summary = folder / "step-summary.md"
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("GITHUB_", "INFERSIEGE_"))}
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self.environ = kept | {"PATH": path, "PORT": str(port), "OPTIONS": options, "NO_COLOR": "1"}
        self._sessions: list[int] = []

    def shell(self, script: str, *flags: str, **environ: str) -> tuple[int, str]:
        """Exit code and output of one script. What it leaves in the background lives on until `close`."""
        log = self.folder / f"log-{len(self._sessions)}.txt"
        with log.open("wb") as out:
            process = subprocess.Popen(
                ["bash", "--noprofile", "--norc", *flags, "-c", script],
                cwd=self.folder,
                env=self.environ | environ,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            self._sessions.append(process.pid)
            code = process.wait(100.0)
        return code, log.read_text(encoding="utf-8")

    def close(self) -> None:
        """As a runner does when the job is over."""
        for session in self._sessions:
            try:
                os.killpg(session, signal.SIGKILL)
            except ProcessLookupError:
                continue


def github(job: Job) -> tuple[int, str]:
    """Each step in a shell of its own, until one fails."""
    code, said = 0, ""
    install, *scripts = github_steps().values()
    assert install == INSTALL, "all other steps are run here"
    for script in scripts:
        code, said = job.shell(script, "-e", GITHUB_ACTIONS="true", GITHUB_STEP_SUMMARY=str(job.step_summary))
        if code:
            break
    return code, said


def gitlab(job: Job) -> tuple[int, str]:
    """All lines in one shell."""
    assert gitlab_script()[0] == INSTALL
    return job.shell("\n".join(gitlab_script()[1:]), "-eo", "pipefail", GITLAB_CI="true")


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.parametrize(("options", "code", "verdict"), [(FEW, 0, "PASS"), (BROKEN, 1, "FAIL")], ids=["pass", "fail"])
def test_the_scripts_run_as_they_are(
    tmp_path: Path, free_port: Callable[[], int], options: str, code: int, verdict: str
) -> None:
    """Those of both systems at once, each in a folder of its own."""
    jobs = {system: Job(tmp_path / system.__name__, free_port(), options) for system in (github, gitlab)}
    try:
        with ThreadPoolExecutor() as pool:
            ended = dict(zip(jobs, pool.map(lambda system: system(jobs[system]), jobs), strict=True))
    finally:
        for job in jobs.values():
            job.close()
    for system, (exited, said) in ended.items():
        if exited == 3 and "client-bound" in said:
            pytest.skip("this machine is too busy for a verdict: client-bound")
        assert exited == code, said
        check_outputs(jobs[system].folder / "results", code, verdict)
        text = (jobs[system].folder / "verdict.md").read_text(encoding="utf-8")
        assert text.startswith(f"### infersiege: {verdict} · load gate")
    said, step_summary = ended[github][1], jobs[github].step_summary
    assert step_summary.read_text(encoding="utf-8") == (jobs[github].folder / "verdict.md").read_text(encoding="utf-8")
    assert ("::error title=infersiege%3A fail%3A ttft p95" in said) == (code == 1)
    assert ("::notice title=" in said) == (code == 0)
    assert "::error" not in ended[gitlab][1] and not jobs[gitlab].step_summary.exists()


def check_outputs(run: Path, code: int, verdict: str) -> None:
    """What a job publishes of a run says the same as its exit code."""
    document = (run / "junit.xml").read_text(encoding="utf-8")
    xmlschema.XMLSchema(str(ROOT / "tests" / "data" / "junit.xsd")).validate(document)
    suite = ET.fromstring(document).find("testsuite")
    assert suite is not None
    assert (suite.get("failures") != "0", suite.get("errors") != "0") == (code == 1, code == 5)
    told = json.loads((run / "gate.json").read_text(encoding="utf-8"))
    assert (told["exit_code"], told["verdict"].upper()) == (code, verdict)
    assert (run / "report.html").is_file()


@pytest.mark.slow
def test_the_figures_of_main_are_kept_and_used(tmp_path: Path) -> None:
    """The steps of GitHub around the load, on runs that are there: main saves, a pull request is held against it."""
    steps = github_steps("github-baseline.yml")
    job = Job(tmp_path, 0, "")
    write_side(tmp_path / "results")
    code, said = job.shell(steps["Save the baseline"], "-e", GITHUB_SHA="0" * 40)
    assert code == 0 and "5 runs" in said and (tmp_path / "baseline.json").is_file(), said
    for name, slower, code in (("same", 1.0, 0), ("slower", 1.15, 1)):
        shutil.rmtree(tmp_path / "results")
        write_side(tmp_path / name, slower).rename(tmp_path / "results")
        ended, said = job.shell(steps["Gate against main"], "-e", GITHUB_STEP_SUMMARY=str(job.step_summary))
        assert ended == code, said
        assert (tmp_path / "verdict.md").read_text(encoding="utf-8").startswith("### infersiege: "), said
        assert (tmp_path / "results" / "run-5" / "junit.xml").is_file()


GH = """#!/bin/sh
echo "$*" >> asked.txt
case "$2" in
  list) printf '%s' "$NEWEST" ;;
  download) [ "$3" = 42 ] && echo kept > baseline.json ;;
esac
"""
"""In place of GitHub's own program: it knows the run 42."""


@pytest.mark.parametrize(
    ("newest", "code", "asked"),
    [
        ("42", 0, ["run list", "run download 42 --name load-baseline"]),
        ("", 5, ["run list"]),
        ("41", 5, ["run list", "run download 41 --name load-baseline"]),
    ],
    ids=["there", "main never ran", "artifact expired"],
)
def test_github_fetches_the_figures_of_main(tmp_path: Path, newest: str, code: int, asked: list[str]) -> None:
    """With the newest good run on main of the workflow that docs/ci.md has people copy."""
    job = Job(tmp_path, 0, "")
    (tmp_path / "gh").write_text(GH, encoding="utf-8")
    (tmp_path / "gh").chmod(0o755)
    script = f"PATH=$PWD:$PATH\n{github_steps('github-baseline.yml')['Fetch the baseline of main']}"
    ended, said = job.shell(script, "-e", NEWEST=newest)
    assert ended == code, said
    told = (tmp_path / "asked.txt").read_text(encoding="utf-8").splitlines()
    assert "--workflow load-baseline.yml --branch main --event push --status success --limit 1" in told[0]
    assert [told[0][:8], *told[1:]] == asked
    assert ("::error::main has no baseline" in said) == (code == 5)
    assert (tmp_path / "baseline.json").is_file() == (code == 0)


@pytest.mark.slow
def test_gitlab_keeps_the_figures_in_its_registry(tmp_path: Path) -> None:
    """What one job puts there is what the other one gets; and one that gets nothing says so."""
    made = read("gitlab-baseline.yml")
    save, fetch = made["save load baseline"]["script"][2], made["load gate against baseline"]["script"][0]
    job = Job(tmp_path, 0, "")
    with registry() as (address, kept):
        given = {"CI_API_V4_URL": address, "CI_PROJECT_ID": "7", "CI_DEFAULT_BRANCH": "main", "CI_JOB_TOKEN": "t0ken"}
        url = Template(made[".load runs"]["variables"]["BASELINE_URL"]).substitute(given)
        code, said = job.shell(fetch, "-eo", "pipefail", **given, BASELINE_URL=url)
        assert code == 5 and "has no baseline yet" in said, said
        (tmp_path / "baseline.json").write_text('{"figures": 1}', encoding="utf-8")
        code, said = job.shell(save, "-eo", "pipefail", **given, BASELINE_URL=url)
        assert code == 0, said
        assert kept == {"/projects/7/packages/generic/load-baseline/main/baseline.json": b'{"figures": 1}'}
        (tmp_path / "baseline.json").unlink()
        code, said = job.shell(fetch, "-eo", "pipefail", **given, BASELINE_URL=url)
        assert code == 0, said
    assert (tmp_path / "baseline.json").read_text(encoding="utf-8") == '{"figures": 1}'


@contextmanager
def registry() -> Iterator[tuple[str, dict[str, bytes]]]:
    """GitLab's generic packages, as far as PUT and GET with a job's token go: its address, and what it was given."""
    kept: dict[str, bytes] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            data = self.rfile.read(int(self.headers["Content-Length"]))
            self.answer(201 if self.headers["JOB-TOKEN"] == "t0ken" else 401)
            kept[self.path] = data

        def do_GET(self) -> None:
            there = self.headers["JOB-TOKEN"] == "t0ken" and self.path in kept
            self.answer(200 if there else 404, kept.get(self.path, b""))

        def answer(self, status: int, body: bytes = b"") -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass  # it would go to the test's stderr

    server = LoopbackHttp(Handler)
    try:
        yield server.url, kept
    finally:
        server.close()


@pytest.mark.slow
@pytest.mark.alone
def test_both_versions_in_turn(tmp_path: Path, free_port: Callable[[], int]) -> None:
    """One run a side tells nothing, and the script says so; five would take a minute."""
    job = Job(tmp_path, free_port(), f"{FEW} --set load.ramp=0s --set run.duration=1s")
    try:
        code, said = job.shell("bash load/against.sh", "-e", OLD_PORT=str(free_port()), RUNS="1")
    finally:
        job.close()
    if code == 3 and "client-bound" in said:
        pytest.skip("this machine is too busy for a verdict: client-bound")
    assert code == 5, said
    check_outputs(tmp_path / "results" / "run-1", 5, "NO DATA")
    plans = [RunDirectory.open(tmp_path / "results" / run).read_plan() for run in ("run-1", "against/run-1")]
    assert len({str(file.channels) for file in plans}) == 2, "each plan has its own engine"
    assert (tmp_path / "verdict.md").is_file()
