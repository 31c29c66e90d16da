#!/usr/bin/env python3
"""Install SGLang beside a CPU vLLM (make vllm), in an environment of its own that borrows vLLM's packages: 520 MB.

    make vllm
    .venv-vllm/bin/python examples/engines/sglang_install.py .venv-sglang

For tests only, and fragile: SGLang's own requirements are all CUDA, so they are left out, and its kernels are replaced
by a module that can be imported and nothing else. HTTP, tokenizer, scheduler, radix cache and metrics are the real
ones; the model runs in plain torch. On a GPU host install SGLang as its documentation says.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

SGLANG = "sglang==0.5.23"
LIGHT = (
    *("orjson", "interegular", "uvloop", "xxhash", "zstandard", "modelscope", "gguf", "python-dateutil", "pytz"),
    *("soundfile", "cffi", "pycparser", "blobfile", "pycryptodomex", "lxml", "torch_memory_saver", "nvidia-ml-py"),
    *("openai-harmony==0.0.4", "outlines==0.1.11", "kernels", "IPython", "traitlets", "decorator"),
    *("matplotlib-inline", "stack-data", "executing", "asttokens", "pure-eval", "pexpect", "ptyprocess"),
    *("prompt-toolkit", "wcwidth", "jedi", "parso", "easydict", "apache-tvm-ffi==0.1.11", "numba==0.65.1"),
    "torchvision==0.29.1",
)
"""What it imports that vLLM doesn't bring. Without their own requirements, or torch would come again."""

KERNELS = '''"""Stands where sglang's compiled kernels would: every name is there, and calling one raises."""

import importlib.machinery
import sys
import types

__version__ = "0.4.10"  # what SGLang 0.5.23 asks for
__path__ = []


class _Absent:
    def __init__(self, name):
        self.__name__ = name

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _Absent(f"{self.__name__}.{name}")

    def __call__(self, *args, **kwargs):
        raise NotImplementedError(f"sgl_kernel is not installed: {self.__name__}")


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return _Absent(name)


class _Finder:
    def find_spec(self, name, path=None, target=None):
        if name.startswith("sgl_kernel."):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        module = types.ModuleType(spec.name)
        module.__path__ = []
        module.__getattr__ = __getattr__
        return module

    def exec_module(self, module):
        pass


sys.meta_path.append(_Finder())
'''


def run(*command: str) -> str:
    """Output of a command; ends the program when it fails."""
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(f"error: {' '.join(command[:4])} … failed; see its message above")
    return done.stdout.strip()


def main() -> None:
    """Make the environment, install into it, and put the stand-ins in place."""
    if len(sys.argv) != 2:
        sys.exit(f"usage: {sys.argv[0]} FOLDER (run it with the Python of an environment that has vLLM)")
    folder = Path(sys.argv[1]).absolute()
    run(sys.executable, "-m", "venv", "--without-pip", str(folder))
    python = str(folder / "bin" / "python")
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"))
    (site / "vllm.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    run(sys.executable, "-m", "pip", "-qq", "--python", python, "install", "--no-deps", SGLANG, *LIGHT)
    # It registers operations of a CUDA build that the CPU build of torch doesn't know.
    (site / "torchvision" / "_meta_registrations.py").write_text("", encoding="utf-8")
    (site / "sgl_kernel").mkdir(exist_ok=True)
    (site / "sgl_kernel" / "__init__.py").write_text(KERNELS, encoding="utf-8")
    print(f"SGLang is installed: export INFERSIEGE_SGLANG={python}")


if __name__ == "__main__":
    main()
