"""tau-bench results: a JSON array of `{"task_id", "trial", "reward", "traj": [OpenAI messages]}`.

The file has no tool schemas, so that minimal ones are made from all calls in it, and no times: delays are 0. Its
sessions are one agent with one policy prompt, so that they share their prefix.
"""

from __future__ import annotations

from typing import Any

import msgspec

from infersiege.records import Session
from infersiege.traces.files.head import Head
from infersiege.traces.files.indexed import IndexedTrace, Placed
from infersiege.traces.files.source import Source
from infersiege.traces.options import OptionTable
from infersiege.traces.sessions.trajectory import Found, Said, cut, openai_message, read_trajectories, shaped
from infersiege.traces.trace import ReadOptions, Tally

NAME = "tau-bench"
OPTIONS: OptionTable = {}


class _Entry(msgspec.Struct):
    traj: list[dict[str, Any]]
    task_id: int | str | None = None
    trial: int | str = 0


def sniff(head: Head) -> bool:
    return head.outline.array and "traj" in head.outline.keys


def read(source: Source, options: ReadOptions) -> IndexedTrace:
    """Raises TraceError where the file is no JSON array of trajectories."""

    def make(row: Placed, tally: Tally) -> Found:
        entry: _Entry = row.value
        said = [Said(openai_message(message, tally)) for message in entry.traj]
        task = row.line if entry.task_id is None else entry.task_id
        return Found(
            Session(
                session_id=f"task-{task}-trial-{entry.trial}",
                # The simulated user's last word was never sent to the model.
                turns=cut(said, options, place=row.place),
                source_line=row.line,
            )
        )

    return read_trajectories(source, options, source.elements(), make, format=NAME, decode=shaped(_Entry))
