"""`infersiege-agent engine`: read the metrics of inference engines, again and again."""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from infersiege_agents import loop, options, outlet
from infersiege_agents.console import say
from infersiege_agents.engine_names import ENGINES
from infersiege_agents.engine_scrape import Address, NotMetricsError, Page, ScrapeError, address_of, fetch, one_line
from infersiege_agents.engine_series import UNKNOWN, EngineSeries
from infersiege_agents.errors import TARGET, AgentError
from infersiege_agents.options import variable_shown
from infersiege_agents.points import Point, Sink
from infersiege_agents.twin import noticed

AUTO = "auto"
DEADLINE_S = 2.0
"""A scrape takes at most this long, and at most 0.9 of the interval."""

_RESETS_TO_TELL = 5

_DESCRIPTION = """\
Read what inference engines tell of themselves on their Prometheus page: running and waiting requests, KV cache,
prefix cache, preemptions, tokens, their own TTFT and inter-token latency; in the same words for every engine.
Several --url may be given. --engine, --api-key-env and --instance belong to the --url before them, or, before any
--url, to all of them."""

_EXAMPLE = """\
example:
  infersiege-agent engine --url http://127.0.0.1:8000 --influx-url http://127.0.0.1:8086
  infersiege-agent engine --url http://127.0.0.1:8000 --engine vllm --url http://127.0.0.1:23333 --engine lmdeploy \\
      --api-key-env LMDEPLOY_KEY --out engines.jsonl"""


@dataclass(slots=True)
class Wanted:
    """One --url, with the options that belong to it."""

    url: str
    options: dict[str, str] = field(default_factory=dict)


class _PerUrl(argparse.Action):
    """An option of the --url before it; before any --url, the default of all."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        urls: list[Wanted] = list(getattr(namespace, "urls", None) or ())
        common: dict[str, str] = dict(getattr(namespace, "common", None) or {})
        value = str(values)
        if self.dest == "url":
            urls.append(Wanted(value))
        elif urls:
            urls[-1].options[self.dest] = value
        else:
            common[self.dest] = value
        namespace.urls, namespace.common = urls, common


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "engine",
        help="Scrape the metrics of inference engines.",
        description=_DESCRIPTION,
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--url",
        action=_PerUrl,
        required=True,
        metavar="URL",
        help="http://HOST:PORT, with the path of its metrics page unless that is the engine's own",
    )
    parser.add_argument(
        "--engine",
        action=_PerUrl,
        choices=(*ENGINES, AUTO),
        help="which engine it is  [default: auto, told by the names of its metrics]",
    )
    parser.add_argument(
        "--api-key-env", action=_PerUrl, metavar="VARIABLE", help="environment variable that holds its key"
    )
    parser.add_argument("--instance", action=_PerUrl, metavar="NAME", help="tag `instance`  [default: its host:port]")
    parser.add_argument(
        "--host", metavar="NAME", help="tag `host`  [default: this host for a loopback address, else the URL's host]"
    )
    parser.add_argument(
        "--interval", type=options.seconds(0.05, 3600), default=1.0, metavar="S",
        help="seconds between reads  [default: 1]",
    )  # fmt: skip
    parser.add_argument(
        "--seconds", type=options.seconds(0.05, 1e9), metavar="S", help="end after this time  [default: go on]"
    )
    options.add_with_parent(parser)
    outlet.add_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Read until told to end; 4 when no engine ever answered, or when points were lost."""
    engines = engines_of(args, dict(os.environ))
    out = outlet.open_outlet(args, source="engine", environ=os.environ)
    watch = Watch(engines, out, deadline_s=min(DEADLINE_S, 0.9 * args.interval), tell=say)
    try:
        with contextlib.ExitStack() as claims:
            for engine in engines:
                claims.enter_context(noticed(engine.series_name, say))
            loop.run_every(args.interval, watch.step, seconds=args.seconds, with_parent=args.with_parent)
    finally:
        told = out.close()
    print(f"{watch.summary()}; {told}")
    if all(engine.good == 0 for engine in engines):
        raise AgentError(
            f"no engine answered, not once: {engines[0].problem}", hint=engines[0].advice(), exit_code=TARGET
        )
    return out.exit_code


def engines_of(args: argparse.Namespace, environ: dict[str, str]) -> list[Engine]:
    """One Engine per --url. Raises AgentError for an address, a key or a name that can't be used."""
    engines: list[Engine] = []
    for wanted in args.urls:
        options = {**args.common, **wanted.options}
        address = address_of(wanted.url)
        engine = options.get("engine", AUTO)
        instance = options.get("instance") or address.netloc
        if any(instance == other.instance for other in engines):
            raise AgentError(
                f"--url {wanted.url}: there are two of {instance}", hint="give each an --instance NAME behind its --url"
            )
        local = address.host in ("localhost", "::1", "0.0.0.0") or address.host.startswith("127.")
        host = args.host or (socket.gethostname() if local else address.host)
        series = EngineSeries(host=host, instance=instance, engine=None if engine == AUTO else engine)
        engines.append(Engine(address, instance, series, _key(options.get("api_key_env"), environ)))
    return engines


def _key(variable: str | None, environ: dict[str, str]) -> str | None:
    if variable is None:
        return None
    key = environ.get(variable, "").strip()
    if not key or not key.isascii() or not key.isprintable():
        state = "not set" if variable not in environ else "empty" if not key else "no key: it has other characters"
        raise AgentError(
            f"--api-key-env: the environment variable {variable_shown(variable)} is {state}",
            hint="export it with the engine's key; the option takes the variable's name, never the key",
        )
    return key


class Engine:
    """One engine that is read. Its clocks are arguments: `wall_ns` since the epoch, `clock` monotonic in s."""

    def __init__(
        self,
        address: Address,
        instance: str,
        series: EngineSeries,
        api_key: str | None,
        *,
        wall_ns: Callable[[], int] = time.time_ns,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.instance = instance
        self.good = 0
        self.failed = 0
        self.resets = 0
        self.problem: str | None = None
        """Why the last scrape failed."""
        self._address = address
        self._series = series
        self._api_key = api_key
        self._wall_ns = wall_ns
        self._clock = clock
        self._paths = [address.path] if address.path else _paths_of(series.engine)

    @property
    def name(self) -> str:
        return f"{self._series.engine} at {self.instance}"

    @property
    def series_name(self) -> str:
        """What its points are told apart by."""
        return f"engine {self.instance} of {self._series.host}"

    @property
    def alternating(self) -> bool:
        """Its counters begin anew at each page: that is not one engine."""
        return self._series.resets_in_a_row >= _RESETS_TO_TELL

    def advice(self) -> str:
        """What to try when nothing comes."""
        names = ENGINES.get(self._series.engine)
        return names.enable if names is not None else "is it the address of an engine? --engine NAME says which one"

    def scrape(self, deadline_s: float) -> Point:
        """Read its page once: a point, whatever happens. Takes at most `deadline_s` and what the host's name takes."""
        began = self._clock()
        try:
            page = self._page(began + deadline_s)
        except ScrapeError as error:
            point = self._series.failed(self._with_advice(error), at_ns=self._wall_ns())
        else:
            now = self._clock()
            point = self._series.scraped(page, at_ns=self._wall_ns(), at_s=now, took_s=now - began)
        self._count(point)
        return point

    def overdue(self) -> Point:
        """The point of a scrape that has not come back yet."""
        point = self._series.failed("still waiting for the address of its host", at_ns=self._wall_ns())
        self._count(point)
        return point

    def broken(self, error: Exception) -> Point:
        """The point of a scrape in which something happened that nobody foresaw: the next one is made all the same."""
        what = f"a fault of infersiege-agent, please report it: {type(error).__name__}: {error}"
        point = self._series.failed(one_line(what), at_ns=self._wall_ns())
        self._count(point)
        return point

    def _page(self, ends: float) -> Page:
        """The page at the first of its possible paths that has one; that path is asked first from now on."""
        first: ScrapeError | None = None
        for path in list(self._paths):
            try:
                page = fetch(
                    self._address, path, api_key=self._api_key, deadline_s=ends - self._clock(), clock=self._clock
                )
            except NotMetricsError as error:
                first = first or error
            else:
                self._paths.remove(path)
                self._paths.insert(0, path)
                return page
        assert first is not None, "there is always a path"
        raise first

    def _with_advice(self, error: ScrapeError) -> str:
        if isinstance(error, NotMetricsError):
            return f"{error} at {self._paths[0]} ({self.advice()})"
        return str(error)

    def _count(self, point: Point) -> None:
        if point.fields.get("up") == 1.0:
            self.good += 1
            self.problem = None
        else:
            self.failed += 1
            self.problem = str(point.fields.get("error"))
        self.resets += point.fields.get("resets") == 1.0


def _paths_of(engine: str) -> list[str]:
    """Where its page may be: the engine's own path, or, when it isn't known, those of all."""
    if engine == UNKNOWN:
        return list(dict.fromkeys(names.path for names in ENGINES.values()))
    return [ENGINES[engine].path]


class Watch:
    """All engines, read at the same time at each step: a slow one stops no other."""

    def __init__(
        self, engines: Sequence[Engine], sink: Sink, *, deadline_s: float, tell: Callable[[str], None]
    ) -> None:
        self._engines = engines
        self._sink = sink
        self._deadline_s = deadline_s
        self._tell = tell
        self._readers: dict[str, _Reader] = {}
        self._told: dict[str, str | None] = {}

    def step(self) -> None:
        """Read each engine once, and hand over the points."""
        self._hand_over()  # what came after its step had ended
        fresh = []
        for engine in self._engines:
            reader = self._readers.get(engine.instance)
            if reader is not None:
                self._sink.put(engine.overdue())
            else:
                fresh.append(_Reader(engine, self._deadline_s))
                self._readers[engine.instance] = fresh[-1]
                fresh[-1].start()
        ends = time.monotonic() + self._deadline_s + 0.05
        for reader in fresh:
            reader.join(max(0.0, ends - time.monotonic()))
        self._hand_over()
        self._sink.tick()
        for engine in self._engines:
            self._tell_of(engine)

    def _hand_over(self) -> None:
        """The points of the readers that have ended. A reader is left only while its host's name is looked up."""
        for instance, reader in list(self._readers.items()):
            if not reader.is_alive():
                del self._readers[instance]
                if reader.point is not None:
                    self._sink.put(reader.point)

    def summary(self) -> str:
        """How often each was read."""
        return "; ".join(
            f"{engine.name}: {engine.good:,} pages read, {engine.failed:,} not"
            + (f", {engine.resets:,} restart(s) seen" if engine.resets else "")
            for engine in self._engines
        )

    def _tell_of(self, engine: Engine) -> None:
        """A line when something changes, not at each step."""
        state = engine.problem
        if state is None and engine.alternating:
            state = "its counters begin anew at each page: several servers behind one address? name each of them"
        before = self._told.get(engine.instance, "")
        if state == before:
            return
        self._told[engine.instance] = state
        if state is not None:
            self._tell(f"warning: {engine.name}: {state}")
        else:
            self._tell(f"{engine.name}: reading its metrics{' again' if before else ''}")


class _Reader(threading.Thread):
    """One scrape. A daemon: a name server that hangs must not keep the process alive."""

    def __init__(self, engine: Engine, deadline_s: float) -> None:
        super().__init__(name=f"scrape {engine.instance}", daemon=True)
        self.point: Point | None = None
        self._engine = engine
        self._deadline_s = deadline_s

    def run(self) -> None:
        try:
            self.point = self._engine.scrape(self._deadline_s)
        except Exception as error:  # noqa: BLE001 - a thread's last net: no traceback, and no second without a point
            self.point = self._engine.broken(error)
