"""The CI files that ship: valid for their system, and their scripts run here as the runner would run them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
import xmlschema
import yaml

from infersiege.plan.load import load_plan

ROOT = Path(__file__).parents[1]
CI = ROOT / "examples" / "ci"
INSTALL = "python -m pip install infersiege"
BROKEN = "--set slo.0.max=10us"
"""No answer comes so soon."""


def read(name: str) -> Any:
    return yaml.safe_load((CI / name).read_text(encoding="utf-8"))


def github_steps() -> list[str]:
    return [step["run"] for step in read("github.yml")["jobs"]["gate"]["steps"] if "run" in step]


def gitlab_script() -> list[str]:
    job = read("gitlab.yml")["load gate"]
    return [*job["before_script"], *job["script"]]


@pytest.mark.parametrize(("name", "schema"), [("github.yml", "github-workflows"), ("gitlab.yml", "gitlab-ci")])
def test_the_file_is_one_of_its_system(name: str, schema: str) -> None:
    """By the schemas that check-jsonschema brings (those of SchemaStore and of GitLab)."""
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}", str(CI / name)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout


def test_the_plan_of_the_jobs_can_be_loaded() -> None:
    assert [slo.abort for slo in load_plan(CI / "plan.toml", environ={}).slos] == [True, True, False, False]


def test_what_the_jobs_publish_is_what_they_write() -> None:
    steps = read("github.yml")["jobs"]["gate"]["steps"]
    published = next(step for step in steps if "upload-artifact" in step.get("uses", ""))
    assert published["if"] == "always()", "a run that failed is the one that people want to look at"
    assert published["with"]["path"].split() == read("gitlab.yml")["load gate"]["artifacts"]["paths"]
    assert read("gitlab.yml")["load gate"]["artifacts"]["reports"] == {"junit": "results/junit.xml"}
    assert read("gitlab.yml")["load gate"]["retry"]["exit_codes"] == [3, 4]


class Job:
    """A runner's working directory and environment, with the project's programs in PATH."""

    def __init__(self, folder: Path, port: int, options: str) -> None:
        self.folder = folder
        (folder / "examples").symlink_to(ROOT / "examples")
        self.step_summary = folder / "step-summary.md"
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("GITHUB_", "INFERSIEGE_"))}
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self.environ = kept | {"PATH": path, "PORT": str(port), "OPTIONS": options, "NO_COLOR": "1"}
        self._sessions: list[int] = []

    def shell(self, script: str, *flags: str, within_s: float = 100.0, **environ: str) -> tuple[int, str]:
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
            code = process.wait(within_s)
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
    assert github_steps()[0] == INSTALL, "all other steps are run here"
    for script in github_steps()[1:]:
        code, said = job.shell(
            script, "-eo", "pipefail", GITHUB_ACTIONS="true", GITHUB_STEP_SUMMARY=str(job.step_summary)
        )
        if code:
            break
    return code, said


def gitlab(job: Job) -> tuple[int, str]:
    """All lines in one shell."""
    assert gitlab_script()[0] == INSTALL
    return job.shell("\n".join(gitlab_script()[1:]), "-eo", "pipefail", GITLAB_CI="true")


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.parametrize(
    ("system", "options", "code", "verdict"),
    [
        (github, "--set run.duration=5s", 0, "PASS"),
        (github, BROKEN, 1, "FAIL"),
        (gitlab, BROKEN, 1, "FAIL"),
        (gitlab, "--set run.duration=5s --set slo.2.min_samples=1000000", 5, "NO DATA"),
    ],
    ids=["github-pass", "github-fail", "gitlab-fail", "gitlab-no-data"],
)
def test_the_scripts_run_as_they_are(
    tmp_path: Path,
    free_port: Callable[[], int],
    system: Callable[[Job], tuple[int, str]],
    options: str,
    code: int,
    verdict: str,
) -> None:
    job = Job(tmp_path, free_port(), options)
    try:
        ended, said = system(job)
    finally:
        job.close()
    if ended == 3 != code and "client-bound" in said:
        pytest.skip("this machine is too busy for a verdict: client-bound")
    assert ended == code, said
    document = (tmp_path / "results" / "junit.xml").read_text(encoding="utf-8")
    xmlschema.XMLSchema(str(ROOT / "tests" / "data" / "junit.xsd")).validate(document)
    suite = ET.fromstring(document).find("testsuite")
    assert suite is not None
    assert (suite.get("failures") != "0" or suite.get("errors") != "0") == (code != 0)
    told = json.loads((tmp_path / "results" / "gate.json").read_text(encoding="utf-8"))
    assert (told["exit_code"], told["verdict"].upper()) == (code, verdict)
    assert (told["stopped_early"] is not None) == (options == BROKEN), "the plan's rules stop a hopeless run"
    text = (tmp_path / "verdict.md").read_text(encoding="utf-8")
    assert text.startswith(f"### infersiege: {verdict} · load gate")
    assert (tmp_path / "results" / "report.html").is_file()
    if system is github:
        assert job.step_summary.read_text(encoding="utf-8") == text
        assert ("::error title=infersiege%3A fail%3A ttft p95" in said) == (code == 1)
        assert ("::notice title=" in said) == (code == 0)
    else:
        assert "::error" not in said and not job.step_summary.exists()
