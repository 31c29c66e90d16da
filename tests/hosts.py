"""Hosts on this machine: a fleet of namespaces with own addresses, clocks, disks and names, whose links can be cut.

    with Hosts(folder, ["master", "server", "worker-1", "worker-2"]) as hosts:
        worker = hosts["worker-1"].start("infersiege", "worker", "--master", "10.77.1.1:5557")
        hosts["worker-1"].cut("control")

Each host is a process with namespaces of its own for network, mounts, processes, host name and clock:

* two networks, `control` (10.77.1.0/24) and `load` (10.77.2.0/24), each a bridge inside one more namespace;
* a monotonic clock that differs from everybody else's, and a boot id of its own: nothing there believes that it shares
  a machine with the others;
* a disk of its own, at the same path on each, and none of the others': they are covered.

No namespace has a name (`ip netns` would give them names, which stay behind when a test is killed), and nothing of the
machine's own network is touched. A host's first process ends when its standard input closes, so with whoever made it,
and the kernel then ends whatever runs there: nothing is left, also after Ctrl-C or SIGKILL.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

NETWORKS = {"control": "10.77.1", "load": "10.77.2"}
"""Name -> the first three numbers of its addresses."""
_UNSHARE = ["unshare", "--net", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc", "--time"]
_PROBE = "ip link add probe type bridge"
_UNTIL_IT_CLOSES = "exec cat >/dev/null"


def missing() -> str | None:
    """Why no hosts can be made here, or None."""
    for tool, package in (("ip", "iproute2"), ("unshare", "util-linux"), ("nsenter", "util-linux")):
        if shutil.which(tool) is None:
            return f"no `{tool}`: apt-get install {package}"
    tried = subprocess.run(
        [*_UNSHARE, "--monotonic", "10", "sh", "-c", _PROBE], capture_output=True, text=True, check=False
    )
    if tried.returncode:
        return f"no network namespaces here (they need root): {tried.stderr.strip()}"
    return None


@dataclass(slots=True)
class Process:
    """Something that runs on a host."""

    entered: subprocess.Popen[bytes]
    """`nsenter`, which waits for it and ends as it ends."""
    log: Path

    @property
    def pid(self) -> int:
        """Of the process itself, as this machine numbers it. Raises ProcessLookupError when it is gone."""
        waiting = self.entered.pid
        children = Path(f"/proc/{waiting}/task/{waiting}/children")
        deadline = time.monotonic() + 5
        while self.entered.poll() is None and time.monotonic() < deadline:
            found = children.read_text(encoding="ascii").split()
            if found:
                return int(found[0])
            time.sleep(0.01)
        raise ProcessLookupError(f"{shlex.join(map(str, self.entered.args))}: ended")  # type: ignore[arg-type]

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)
        if number == signal.SIGCONT:  # nsenter stops itself along with what it waits for
            self.entered.send_signal(number)

    def wait(self, within_s: float) -> int:
        """Exit code; negative for a signal. Raises AssertionError, with what it said, when it takes longer."""
        try:
            return self.entered.wait(within_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"did not end within {within_s:g} s:\n{self.output()}") from None

    def output(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")


class Host:
    """One of them."""

    def __init__(self, name: str, number: int, folder: Path, clock_ahead_s: int) -> None:
        """`clock_ahead_s`: of its monotonic clock before this machine's."""
        self.name = name
        self.number = number
        self.clock_ahead_s = clock_ahead_s
        self.here = folder / "disk"
        """Where its own disk is, for what runs on it."""
        self._outside = folder / "hosts" / name
        (self._outside / "tmp").mkdir(parents=True)
        boot_id = self._outside / "boot_id"
        boot_id.write_text(f"00000000-0000-4000-8000-{number:012d}\n", encoding="ascii")
        self._started: list[Process] = []
        steps = [
            f"mount --bind {self._outside} {self.here}",
            f"mount -t tmpfs -o size=4k,mode=0555 none {folder / 'hosts'}",
            f"mount --bind {self.here / 'boot_id'} /proc/sys/kernel/random/boot_id",
            f"hostname {name}",
            "ip link set lo up",
            "echo ready",
            _UNTIL_IT_CLOSES,
        ]
        ahead = ["--monotonic", str(clock_ahead_s), "--boottime", str(clock_ahead_s)]
        self._keeper = subprocess.Popen(
            [*_UNSHARE, *ahead, "sh", "-ec", "\n".join(steps)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._keeper.stdout is not None
        assert self._keeper.stdout.readline() == b"ready\n", f"{name}: its namespaces could not be made"
        self.root_pid = Process(self._keeper, self._outside).pid

    @property
    def disk(self) -> Path:
        """Its disk as seen from outside, with all that is mounted on it."""
        return Path(f"/proc/{self.root_pid}/root") / self.here.relative_to("/")

    def address(self, network: str) -> str:
        return f"{NETWORKS[network]}.{self.number}"

    def command(self, *words: str) -> list[str]:
        """The same, entered from this machine. `infersiege` is the one of this interpreter."""
        if words[0] == "infersiege":
            words = (sys.executable, "-m", *words)
        enter = ["nsenter", "--target", str(self.root_pid), "--net", "--mount", "--uts", "--pid", "--time"]
        return [*enter, "sh", "-c", f'cd {shlex.quote(str(self.here))} && exec "$@"', "sh", *words]

    def cover(self, path: str, text: str) -> None:
        """Let a file of this machine have another content on this host."""
        own = self._outside / Path(path).name
        own.write_text(text, encoding="utf-8")
        code, said = self.run("mount", "--bind", str(self.here / own.name), path)
        assert code == 0, said

    def start(self, *words: str, environ: dict[str, str] | None = None) -> Process:
        """Start a program; what it says goes to a file of this machine."""
        log = self._outside / f"log-{len(self._started) + 1}.txt"
        with log.open("wb") as file:
            entered = subprocess.Popen(
                self.command(*words),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=self._environment(environ),
                start_new_session=True,
            )
        self._started.append(Process(entered, log))
        return self._started[-1]

    def run(self, *words: str, environ: dict[str, str] | None = None, within_s: float = 60.0) -> tuple[int, str]:
        """(exit code, output) of a program that ends by itself."""
        process = self.start(*words, environ=environ)
        code = process.wait(within_s)
        return code, process.output()

    def _environment(self, changes: dict[str, str] | None) -> dict[str, str]:
        own = {
            "INFERSIEGE_SPOOL": str(self.here / "spool"),
            "TMPDIR": str(self.here / "tmp"),
            "NO_COLOR": "1",
            "COLUMNS": "200",
            "PYTHONUNBUFFERED": "1",
        }
        return {**os.environ, **own, **(changes or {})}

    def cut(self, *networks: str) -> None:
        """Take the cable of these networks (default: all) out: nothing goes in or out, and no socket is told."""
        self._cable("down", networks or NETWORKS)

    def mend(self, *networks: str) -> None:
        """Put it in again."""
        self._cable("up", networks or NETWORKS)

    def _cable(self, state: str, networks: Iterable[str]) -> None:
        for network in networks:
            _in_net(self.root_pid, f"ip link set {network} {state}")

    def end(self) -> None:
        """End everything that runs there, and the host."""
        assert self._keeper.stdin is not None and self._keeper.stdout is not None
        self._keeper.stdin.close()
        try:
            self._keeper.wait(10)
        except subprocess.TimeoutExpired:
            self._keeper.kill()
            self._keeper.wait()
        self._keeper.stdout.close()
        for process in self._started:
            process.entered.send_signal(signal.SIGCONT)
            process.entered.wait(10)


class Hosts:
    """All of them, and the two switches between them."""

    def __init__(self, folder: Path, names: Iterable[str]) -> None:
        """`folder`: empty, of this machine; the hosts' disks are in it."""
        self._folder = folder
        self._names = ("switch", *names)
        self._hosts: dict[str, Host] = {}

    def __enter__(self) -> Hosts:
        (self._folder / "disk").mkdir(parents=True)
        try:
            for number, name in enumerate(self._names):
                # The first two, master and server by custom, have this machine's clock: the server's log can then be
                # compared with what a test did when.
                ahead = 0 if number <= 2 else 1_000 * number
                self._hosts[name] = Host(name, number, self._folder, ahead)
            self._connect()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end()

    def __getitem__(self, name: str) -> Host:
        return self._hosts[name]

    def _connect(self) -> None:
        switch, *others = self._hosts.values()
        for network in NETWORKS:
            _in_net(switch.root_pid, f"ip link add {network} type bridge && ip link set {network} up")
            for host in others:
                port = f"{network[0]}{host.number}"
                plug = f"ip link add {port} type veth peer name {network} netns {host.root_pid}"
                _in_net(switch.root_pid, f"{plug} && ip link set {port} master {network} up")
                _in_net(host.root_pid, f"ip address add {host.address(network)}/24 dev {network}")
                host.mend(network)

    def _end(self) -> None:
        for host in self._hosts.values():
            host.end()
        self._hosts.clear()


def _in_net(pid: int, line: str) -> None:
    """A line of shell in the network of a process, everything else being this machine's. Raises AssertionError."""
    done = subprocess.run(
        ["nsenter", "--target", str(pid), "--net", "sh", "-c", line], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{line}: {done.stderr.strip()}"
