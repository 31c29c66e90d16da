"""The files that a run ends with: figures, without which it is no run, and what people read, which can be made anew."""

from __future__ import annotations

from collections.abc import Callable

from infersiege.errors import UsageError
from infersiege.report.junit import gate_file, junit_xml
from infersiege.report.rebuild import Rebuilt, write_figures, write_page
from infersiege.rundir import RunDirectory


def write_papers(run: RunDirectory, found: Rebuilt, *, gated: bool) -> list[UsageError]:
    """Write all of them (`gated`: junit.xml and gate.json too). Returns why a file for people could not be written.

    Raises UsageError for the others.
    """
    write_figures(run, found)
    steps: list[Callable[[], object]] = [lambda: write_page(run, found)]
    if gated:
        steps.append(lambda: run.write_junit(junit_xml(found.summary, found.summary.rules)))
        steps.append(lambda: run.write_gate(gate_file(found.summary)))
    unmade = []
    for step in steps:
        try:
            step()
        except UsageError as error:
            unmade.append(error)
    return unmade
