"""How workers get in: hello, terms, ready; and who is turned away, with the reason."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

import msgspec

from infersiege.errors import ExitCode, InfersiegeError, RunInvalidError
from infersiege.records import Assignment, ClockPing, Hello, NeededPath, Ready, Refusal, TextLengths
from infersiege.swarm import messages
from infersiege.swarm.fleet import Fleet, WorkerState
from infersiege.swarm.travel import FileStore
from infersiege.swarm.versions import boot_id

UNHEARD_NS = 15_000_000_000
"""A knock waits so long at most for a word of who is in its way: a worker says hello every 2 s, for 20 s."""
LAST_WORDS_NS = 500_000_000
"""What a process said before it was killed may be heard after the first word of the one that takes its place."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What every worker of a run must have in common."""

    run_id: str
    plan: bytes
    plan_hash: str
    trace_hashes: dict[str, str]
    versions: dict[str, str]
    offset_ns: int
    """Master's wall clock minus its monotonic clock."""
    text_lengths: dict[str, dict[str, TextLengths]] = field(default_factory=dict)
    files: tuple[NeededPath, ...] = ()
    """Of the plan, for workers of other hosts."""


class _TurnedAway(NamedTuple):
    message: str
    hint: str
    in_the_way: Collection[WorkerState] = ()
    """Were one of these dead, and nobody had noticed so far, it would be another matter."""


class Door:
    """Answers workers that knock. `refusal` is why the run cannot begin, once a worker of ours said so."""

    def __init__(self, fleet: Fleet, terms: Terms, turned_away: Callable[[str, str], None]) -> None:
        """`turned_away(worker, reason)` is called for each that does not get in, and not again when it comes back."""
        self._fleet = fleet
        self._terms = terms
        self._turned_away = turned_away
        self._away: Counter[tuple[str, str]] = Counter()
        """(worker, reason) -> how often. One that serves run after run (`--forever`) knocks every two seconds."""
        self._first_ns: dict[str, int] = {}
        """By node id: the first knock (monotonic) of those that were not answered yet."""
        self._files = FileStore(terms.files, fleet.seen)
        self._runner: Any = None
        self.refusal: InfersiegeError | None = None
        self.begun = False
        """The load has begun: who does not fit is turned away, and the run goes on."""
        self.over = False
        """Nobody is let in any more."""

    def open(self, runner: Any) -> None:
        self._runner = runner
        self._files.open(runner)
        messages.on(runner, Hello, self._on_hello)
        messages.on(runner, Ready, self._on_ready)
        messages.on(runner, Refusal, self._on_refusal)
        messages.on(runner, ClockPing, self._on_clock_ping)

    def _on_hello(self, node_id: str, hello: Hello) -> None:
        known = self._fleet.workers.get(node_id)
        if known is None:
            away = self._why_not(hello)
            if away is not None and self._waits(node_id, away.in_the_way):
                return
            self._first_ns.pop(node_id, None)
            if away is not None:
                refusal = Refusal(
                    worker=hello.worker, message=away.message, hint=away.hint, exit_code=ExitCode.INVALID_RUN
                )
                messages.send(self._runner, refusal, node_id)
                self._turn_away(node_id, hello, away.message)
                return
            place = next(iter(self._fleet.free_places()), 0)
            hello = msgspec.structs.replace(hello, worker=self._name_of(hello.worker))
            known = WorkerState(node_id, hello, place, last_seen_ns=time.monotonic_ns())
            self._fleet.add(known)
        terms = self._terms
        assignment = Assignment(
            run_id=terms.run_id,
            epoch=0,
            place=known.place,
            members=self._fleet.expected,
            plan=terms.plan,
            plan_hash=terms.plan_hash,
            trace_hashes=terms.trace_hashes,
            offset_ns=terms.offset_ns,
            boot_id=boot_id(),
            text_lengths=terms.text_lengths,
            files=terms.files,
            worker=known.name,
        )
        messages.send(self._runner, assignment, node_id)

    def _why_not(self, hello: Hello) -> _TurnedAway | None:
        if self.over:
            return _TurnedAway("the run is over", "start its workers before it, or another run")
        fleet, own = self._fleet, self._fleet.is_own(hello)
        named = fleet.by_name(hello.worker)
        if named is not None and named.alive:
            return _TurnedAway(f"a worker called {hello.worker} is here already", "give each its own --name", (named,))
        if named is None and hello.worker in fleet.own_names and not own:
            return _TurnedAway(f"{hello.worker} is the name of one of the master's own", "give each its own --name")
        # Who waits for a master, as with --forever, is faster than a process that has just been started.
        kept = 0 if own or self.begun else fleet.awaited()
        if len(fleet.free_places()) <= kept:
            whose = f", {fleet.local} of them the master's own" if kept else ""
            return _TurnedAway(
                f"the run has all of its {fleet.expected} workers{whose}",
                "ask for more of them with --expect-workers",
                () if kept else self._forerunners(hello),
            )
        for name, version in self._terms.versions.items():
            if hello.versions.get(name) != version:
                return _TurnedAway(
                    f"{hello.worker} has {name} {hello.versions.get(name)}, the master has {version}",
                    "install the same versions on every host",
                )
        return None

    def _forerunners(self, hello: Hello) -> list[WorkerState]:
        """Workers of the same host: without a --name the next process has another one. Own ones are seen to end."""
        return [
            one
            for one in self._fleet.alive()
            if (one.hello.host, one.hello.boot_id) == (hello.host, hello.boot_id) and not self._fleet.is_own(one.hello)
        ]

    def _waits(self, node_id: str, in_the_way: Collection[WorkerState]) -> bool:
        """A worker that was killed and started again at once comes before its death is noticed, so a knock is answered
        once those who live have said something since it. It is repeated: who gave up does not get in."""
        now_ns = time.monotonic_ns()
        for node in [node for node, first_ns in self._first_ns.items() if now_ns - first_ns > 2 * UNHEARD_NS]:
            del self._first_ns[node]
            self._runner.environment.forget(node)
        first_ns = self._first_ns.setdefault(node_id, now_ns)
        unheard = any(one.last_seen_ns <= first_ns + LAST_WORDS_NS for one in in_the_way)
        return unheard and now_ns - first_ns < UNHEARD_NS

    def _turn_away(self, node_id: str, hello: Hello, reason: str) -> None:
        self._runner.environment.forget(node_id)
        # Without a --name it has another one with each of its processes.
        who = hello.worker.removesuffix(f"-{hello.pid}")
        key = who, reason.replace(hello.worker, who)
        self._away[key] += 1
        if self._away[key] == 1:
            self._turned_away(hello.worker, reason)

    def away(self, most: int = 3) -> list[tuple[str, str]]:
        """(worker, reason) of the first that were turned away."""
        return list(islice(self._away, most))

    def away_again(self) -> Iterator[tuple[str, str]]:
        """(worker, reason with how often) of those that were turned away more than once for it."""
        for (who, reason), count in self._away.items():
            if count > 1:
                yield who, f"{reason} (it asked {count:,} times)"

    def _name_of(self, asked: str) -> str:
        """A name that nobody ever had in this run: a container that is started again has its old one, and what was its
        forerunner's stays that one's."""
        name, number = asked, 1
        while self._fleet.by_name(name) is not None:
            number += 1
            name = f"{asked}.{number}"
        return name

    def _on_ready(self, node_id: str, ready: Ready) -> None:
        worker = self._fleet.seen(node_id)
        if worker is None:
            return
        terms = self._terms
        if ready.plan_hash != terms.plan_hash or ready.trace_hashes != terms.trace_hashes:
            differing = [key for key, value in terms.trace_hashes.items() if ready.trace_hashes.get(key) != value]
            what = f"trace of {', '.join(differing)}" if differing else "plan"
            error = RunInvalidError(
                f"{worker.name} on {worker.hello.host} has another {what} than the master",
                hint="copy the same trace file to every host",
            )
            self._turn_out(worker, error)
            refusal = Refusal(worker=worker.name, message=str(error), hint=error.hint, exit_code=ExitCode.INVALID_RUN)
            messages.send(self._runner, refusal, node_id)
            return
        worker.ready = ready
        worker.clock_offset_ns, worker.clock_uncertainty_ns = ready.clock_offset_ns, ready.clock_uncertainty_ns

    def _on_refusal(self, node_id: str, refusal: Refusal) -> None:
        worker = self._fleet.workers.get(node_id)
        if worker is None:
            return
        error = RunInvalidError(f"{refusal.worker}: {refusal.message}", hint=refusal.hint)
        error.exit_code = messages.exit_code_of(refusal)
        self._turn_out(worker, error)

    def _turn_out(self, worker: WorkerState, error: RunInvalidError) -> None:
        """A worker that was let in can't take part: before the load the run can't begin without it."""
        if not self.begun:
            self.refusal = error
        elif not worker.admitted:
            self._fleet.remove(worker)
            self._turn_away(worker.node_id, worker.hello, str(error))

    def _on_clock_ping(self, node_id: str, ping: ClockPing) -> None:
        self._fleet.seen(node_id)
        answer = ClockPing(worker=ping.worker, sent_ns=ping.sent_ns, master_ns=time.monotonic_ns())
        messages.send(self._runner, answer, node_id)
