"""Agents that `run` starts on its own host: its GPUs and the engines' /metrics, into the run directory and InfluxDB.

They are processes of their own, so that reading a slow driver or a busy engine never holds up the load. Nothing here
stops a run: an agent that can't work is a warning.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from infersiege_agents.environment import bare
from infersiege_agents.errors import NO_GPU

from infersiege.channels.profiles import PROFILES
from infersiege.channels.url import root_url
from infersiege.errors import InfersiegeError
from infersiege.plan.schema import Channel, Plan
from infersiege.redact import api_key
from infersiege.rundir import ENGINE_SERIES, GPU_SERIES, ChannelFacts, RunDirectory

CLOSE_WITHIN_S = 3.0
"""So long an agent waits for its database at the end; the run's own writer sends what is still spooled, or the next."""
STOP_WITHIN_S = CLOSE_WITHIN_S + 4.0
"""Later it is killed."""

KEY_VARIABLE = "INFERSIEGE_ENGINE_KEY"
"""Key of a channel that has it in a file: for the agent's environment, never its command line."""


@dataclass(slots=True)
class _Agent:
    """One agent process, or why there is none."""

    kind: str
    """`GPU` or `engine`, as in a warning."""
    command: list[str]
    environ: dict[str, str]
    log: Path
    out: Path
    """Its points."""
    process: subprocess.Popen[bytes] | None = None
    problem: str | None = None
    stopping: bool = False


class LocalAgents:
    """Starts, watches and ends them. Safe to use when the plan asks for none.

    None of the methods raises for what is wrong with an agent: `problems` tells it.
    """

    def __init__(
        self, plan: Plan, channels: Mapping[str, ChannelFacts], run: RunDirectory, environ: Mapping[str, str]
    ) -> None:
        self._plan = plan
        self._channels = channels
        self._run = run
        self._environ = environ
        self._notes: list[str] = []
        self._agents: list[_Agent] = []
        self._hurried = False

    def start(self) -> None:
        """Start what [telemetry] asks for. Returns at once: an agent that can't work is found by `problems`."""
        wanted = self._plan.telemetry
        try:
            if wanted.gpu:
                self._add("GPU", "gpu", GPU_SERIES, [], (), {})
            if wanted.engine_metrics:
                self._add_engine()
        except InfersiegeError as error:
            self._notes.append(f"series of GPUs and engines: {error}")
        for agent in self._agents:
            _launch(agent)

    def problems(self) -> list[str]:
        """One line for each agent that could not start, or that ended although nobody told it to.

        Ask once more after `stop`: that an engine never answered is sure only then.
        """
        found = list(self._notes)
        for agent in self._agents:
            if agent.problem is None and agent.process is not None and not agent.stopping:
                code = agent.process.poll()
                if code is not None:
                    agent.problem = _why_ended(agent, code)
            if agent.problem is not None:
                found.append(agent.problem)
        return found

    def stop(self) -> None:
        """SIGTERM to all, then at most STOP_WITHIN_S for all together to hand over what they hold; then SIGKILL.

        What a killed one had not sent lies in the spool; its sender goes on for a while.
        """
        self.problems()
        running = [agent for agent in self._agents if agent.process is not None and not agent.stopping]
        for agent in running:
            agent.stopping = True
            if agent.process is not None and agent.process.poll() is None:
                agent.process.terminate()
        deadline = time.monotonic() + STOP_WITHIN_S
        for agent in running:
            _reap(agent, lambda: not self._hurried and time.monotonic() < deadline)

    def hurry(self) -> None:
        """Called by a signal: `stop` shall not wait any longer."""
        self._hurried = True

    def _add(
        self, kind: str, command: str, series: str, more: Sequence[str], keep: Sequence[str], keys: Mapping[str, str]
    ) -> None:
        """`keep`: variables that this agent needs beside what any program gets; `keys`: more of our own.

        A database of the environment is not among them: the plan alone says where points go.
        """
        out = (self._run.telemetry / series).absolute()
        # -P: a module of the folder in which somebody stands is none of ours.
        arguments = [sys.executable, "-P", "-m", "infersiege_agents.cli", command]
        arguments += ["--out", str(out), "--with-parent", str(os.getpid())]
        arguments += [*more, *self._influx()]
        token = self._plan.telemetry.influx_token_env if self._plan.telemetry.influx_url else None
        logs = self._run.path / "logs"
        with contextlib.suppress(OSError):
            logs.mkdir(exist_ok=True)
        self._agents.append(
            _Agent(
                kind=kind,
                command=arguments,
                environ={**bare(self._environ, (*keep, *([token] if token else []))), **keys},
                log=logs / f"agent-{command}.log",
                out=out,
            )
        )

    def _influx(self) -> list[str]:
        """The same database as the run's own points; the token stays in its environment variable."""
        wanted = self._plan.telemetry
        if wanted.influx_url is None:
            return []
        arguments = ["--influx-url", wanted.influx_url, "--influx-bucket", wanted.influx_bucket]
        arguments += ["--close-within", f"{CLOSE_WITHIN_S:g}"]
        for option, value in (
            ("--influx-org", wanted.influx_org),
            ("--influx-token-env", wanted.influx_token_env),
            ("--spool", wanted.spool),
        ):
            arguments += [option, value] if value is not None else []
        return arguments

    def _add_engine(self) -> None:
        """One process for all engines that tell. Clouds don't: that is worth a word only when no channel does."""
        more: list[str] = []
        keys: dict[str, str] = {}
        keep: list[str] = []
        seen: set[str] = set()
        silent: list[str] = []
        for place, (name, channel) in enumerate(self._plan.channels.items(), 1):
            profile = PROFILES[channel.engine]
            base = channel.base_url
            if profile.metrics_path is None or base is None:
                silent.append(f"{profile.title} (channel {name})")
                continue
            url = root_url(base, profile.metrics_path)
            if url in seen:
                continue
            seen.add(url)
            variable = self._key_variable(channel, place, keys)
            keep += [variable] if variable else []
            more += ["--url", url, "--engine", channel.engine, *(["--api-key-env", variable] if variable else [])]
        if more:
            self._add("engine", "engine", ENGINE_SERIES, more, keep, keys)
        else:
            self._notes.append(f"engine series: none: {', '.join(silent)} has no /metrics to scrape")

    def _key_variable(self, channel: Channel, place: int, keys: dict[str, str]) -> str | None:
        """The environment variable that has the channel's key; one of our own for a key that lies in a file.

        Raises UsageError for a file without a key.
        """
        if channel.api_key_env is not None:
            return channel.api_key_env
        key = api_key(channel, self._environ)
        if key is None:
            return None
        variable = f"{KEY_VARIABLE}_{place}"
        keys[variable] = key
        return variable


def _launch(agent: _Agent) -> None:
    try:
        with agent.log.open("wb") as log:
            agent.process = subprocess.Popen(
                agent.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=agent.environ,
                start_new_session=True,
            )
    except OSError as error:
        agent.problem = f"{agent.kind} series: its agent can't be started: {(error.strerror or str(error)).lower()}"


def _why_ended(agent: _Agent, code: int) -> str:
    """One line from its exit code and the errors in its log."""
    said = _last_error(agent.log)
    if code == NO_GPU:
        return f"GPU series: the GPUs of this host are not in this run: {said or 'no driver, or no GPU'}"
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    if not said and _wrote_nothing(agent):
        return f"{agent.kind} series: the agent wrote no point: it ended ({how}): see {agent.log}"
    return f"{agent.kind} series end early: their agent ended ({how}): {said or f'see {agent.log}'}"


def _last_error(log: Path) -> str:
    """The last line that begins with `error:`; empty: there is none. Notes and warnings are no reason of an end."""
    try:
        lines = [line.strip() for line in log.read_text("utf-8", "replace").splitlines()]
    except OSError:
        return ""
    errors = [line for line in lines if line.startswith("error:")]
    return errors[-1].removeprefix("error:").strip()[:300] if errors else ""


def _wrote_nothing(agent: _Agent) -> bool:
    try:
        return agent.out.stat().st_size == 0
    except OSError:
        return True


def _reap(agent: _Agent, patient: Callable[[], bool]) -> None:
    process = agent.process
    if process is None:
        return
    while process.poll() is None and patient():
        time.sleep(0.01)
    killed = process.poll() is None
    if killed:
        process.kill()
        process.wait()
    if agent.problem is not None:
        return
    # SIGTERM before it could take signals is the end that it was told to make.
    failed = not killed and process.returncode not in (0, -signal.SIGTERM)
    if failed and (said := _last_error(agent.log)):
        # Such as an engine that never answered.
        agent.problem = f"{agent.kind} series: {said}"
    elif _wrote_nothing(agent):
        how = " and was killed, since it did not end in time" if killed else ""
        agent.problem = f"{agent.kind} series: the agent wrote no point{how}: see {agent.log}"
    elif killed:
        agent.problem = f"{agent.kind} series: their agent did not end in time and was killed"
    elif failed:
        how = f"signal {-process.returncode}" if process.returncode < 0 else f"exit code {process.returncode}"
        agent.problem = f"{agent.kind} series: {how}: see {agent.log}"
