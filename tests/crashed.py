"""A run whose master is gone: real spools of its workers, and the run directory as a crash leaves it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from records_sample import SECOND, START_NS
from swarm_rows import LABELS, RUN_ID, STEADY, Key, lines

from infersiege.plan.load import plan_json
from infersiege.plan.load_schema import Load
from infersiege.plan.schema import Channel, Plan, Run, Workload
from infersiege.records import Bye, Outcome, Reason, TurnRecord
from infersiege.rundir import ChannelFacts, PlanFile, RunDirectory
from infersiege.swarm.ledger import Ledger, OpenSession, unsent_record
from infersiege.swarm.leftovers import Leftover, named
from infersiege.swarm.source import SessionSource
from infersiege.swarm.spool import Spool
from infersiege.swarm.spool_info import SpoolInfo

CLOSED = Load(mode="closed", users=4)
OPEN = Load(mode="open", rate=10.0, arrivals="constant")
SECRET = "sk-very-secret-0123456789"


def plan_of(load: Load) -> Plan:
    return Plan(
        run=Run(name="crash test", duration_ns=60 * SECOND, seed=7, nonce="b7c1"),
        channels={LABELS.name: Channel(engine="vllm", base_url="http://127.0.0.1:9/v1", model="m", api_key_env="KEY")},
        workloads=(Workload(scenario="talk", trace="builtin:short-qa", channel=LABELS.name),),
        load=load,
    )


def ok(opened: OpenSession, worker: str, at_ns: int) -> TurnRecord:
    """The record of a line's next turn, which took 0.1 s."""
    row = unsent_record(
        opened.open_turn(STEADY),
        run_id=RUN_ID,
        worker=worker,
        epoch=0,
        channel=LABELS,
        outcome=Outcome.OK,
        reason=Reason.RUN_END,
        turn=opened.next_turn,
        attempt_ns=at_ns,
    )
    return msgspec.structs.replace(row, reason=None, closed_ns=at_ns + SECOND // 10, attempts=1)


@dataclass
class DyingWorker:
    """Plays on a real spool. `home` are the rows that its master has in turns.jsonl."""

    name: str
    place: int
    crash: Crash
    spools: Path
    home: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.spool = Spool(
            self.spools / f"infersiege-spool-{os.getpid()}-{self.name}-{len(self.crash.workers)}", self.name
        )
        self.ledger = Ledger(run_id=RUN_ID, worker=self.name, epoch=0, spool=self.spool, place_of=lambda _: STEADY)
        self.now_ns = START_NS
        self.closed: set[Key] = set()
        self.info = SpoolInfo(
            run_id=RUN_ID,
            run_name="crash test",
            worker=self.name,
            host="bench-1",
            pid=os.getpid(),
            pid_started=1,  # an earlier process of this number
            boot_id="another boot",
            place=self.place,
            members=self.crash.members,
            offset_ns=0,
            clock_offset_ns=0,
            clock_uncertainty_ns=0,
            written_ns=START_NS - SECOND,
            versions={"infersiege": "0"},
            plan_hash="h",
        )
        self.spool.describe(self.info, plan_json(self.crash.plan))
        self.spool.began(START_NS)

    def take(self, name: str, *turns: int) -> tuple[OpenSession, ...]:
        taken = lines(name, *turns, due_ns=START_NS)
        self.ledger.take(*taken)
        return taken

    def start(self, line: OpenSession) -> None:
        self.now_ns += SECOND // 10
        self.ledger.start(line, "id", self.now_ns)

    def play(self, line: OpenSession, turns: int = 1) -> None:
        for _ in range(turns):
            self.start(line)
            self.closed.add((line.session_id, line.next_turn))
            self.ledger.close(line, ok(line, self.name, self.now_ns))

    def ship(self, *, acknowledge: bool = True) -> None:
        """To the master, which writes it down at once."""
        self.spool.cut()
        for segment in self.spool.unacknowledged():
            data = (self.spool.directory / f"segment-{segment.sequence}.jsonl").read_bytes()
            if data not in self.home:
                self.home.append(data)
            if acknowledge:
                self.spool.acknowledge(segment.sequence)

    def kill(self) -> Path:
        self.spool.close(remove=False)
        return self.spool.directory

    def stop(self, *, after_s: float = 0.0) -> Path:
        """For want of a master, as a worker does."""
        self.ledger.skip_all(Reason.NO_LEASE)
        self.now_ns += int(after_s * SECOND)
        bye = Bye(
            worker=self.name,
            records=self.spool.rows_written,
            planned_turns=self.ledger.planned_turns,
            plays=self.ledger.plays,
            hub_lag_p99_ns=None,
            cpu_share_max=None,
            exit_reason="the master is gone",
            spool_error=None,
            fault=None,
            clock_offset_ns=0,
        )
        assert self.spool.leave(bye, self.now_ns, orphaned=True) is not None
        return self.spool.directory


@dataclass
class Crash:
    """Workers, then `master_dies`."""

    folder: Path
    load: Load = CLOSED
    members: int = 2
    workers: list[DyingWorker] = field(default_factory=list)

    @property
    def plan(self) -> Plan:
        return plan_of(self.load)

    @property
    def path(self) -> Path:
        return self.folder / "run"

    def worker(self, *, host: str = "spools") -> DyingWorker:
        place = len(self.workers)
        made = DyingWorker(f"worker-{place + 1}", place, self, self.folder / host)
        self.workers.append(made)
        return made

    def master_dies(self, tail: bytes = b"") -> None:
        """What it has on disk: no end in plan.json, rows that came, and perhaps half a row."""
        with RunDirectory.create(self.path, name="crash test", now_ns=START_NS) as run:
            run.write_plan(
                PlanFile(
                    run_id=RUN_ID,
                    name="crash test",
                    created_ns=START_NS - 2 * SECOND,
                    started_ns=START_NS,
                    nonce="b7c1",
                    plan=msgspec.to_builtins(self.plan),
                    channels={LABELS.name: ChannelFacts(url="http://h/v1", engine="vllm", dialect="d", model="m")},
                    workers_asked=self.members,
                )
            )
            for worker in self.workers:
                for block in worker.home:
                    run.append_turn_lines(block)
        with (self.path / "turns.jsonl").open("ab") as file:
            file.write(tail)

    def leftovers(self) -> list[Leftover]:
        """Of all hosts."""
        return named([path for path in sorted(self.folder.iterdir()) if path.name not in ("run", "out")])

    def rows(self, path: Path | None = None) -> dict[Key, TurnRecord]:
        rows = list(RunDirectory.open(path or self.path).read_turns())
        found = {(row.session_id, row.turn): row for row in rows}
        assert len(found) == len(rows), "a turn has two records"
        return found

    def planned(self) -> int:
        return sum(worker.ledger.planned_turns for worker in self.workers)


def contents(path: Path) -> dict[str, bytes]:
    """Every file of a directory."""
    return {str(one.relative_to(path)): one.read_bytes() for one in sorted(path.rglob("*")) if one.is_file()}


def arrivals(plan: Plan, until_ns: int) -> Sequence[tuple[str, int]]:
    """(session, turns) of every arrival that is due until an instant."""
    source = SessionSource(plan, place=0, members=1)
    found = []
    for ticket in source.tickets():
        if START_NS + (ticket.offset_ns or 0) > until_ns:
            break
        name, conversation = source.named_conversation(ticket)
        found.append((name, sum(len(line.turns) for line in conversation.lines)))
    return found
