"""`infersiege-agent`: so far it says what it will do, and that it doesn't do it yet."""

from __future__ import annotations

import argparse
import sys
from importlib import metadata

NOT_BUILT = 2
"""Exit code of a usage error, as in `infersiege`: a script that relies on these commands must notice."""

COMMANDS = {
    "gpu": "sample the GPUs of this host with NVML",
    "engine": "scrape the Prometheus metrics of an inference engine",
}


def main(argv: list[str] | None = None) -> int:
    """Run the command line; the exit code."""
    version = metadata.version("infersiege-agents")
    parser = argparse.ArgumentParser(
        prog="infersiege-agent", description="Push GPU and engine metrics to InfluxDB. Comes with the next release."
    )
    parser.add_argument("--version", action="version", version=f"infersiege-agent {version}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, purpose in COMMANDS.items():
        commands.add_parser(name, help=f"{purpose} (comes with the next release)", description=purpose)
    command = parser.parse_args(argv).command
    print(
        f"error: infersiege-agent {version} can't {COMMANDS[command]} yet\n"
        f"hint: `{command}` comes with the next release; nothing was measured or sent",
        file=sys.stderr,
    )
    return NOT_BUILT


if __name__ == "__main__":
    sys.exit(main())
