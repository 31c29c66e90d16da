#!/usr/bin/env python3
"""A real SGLang on the CPU with the tiny model of vllm_serve.py: no download, no GPU. Its words mean nothing.

Run it with the Python of an environment that has SGLang (on a CPU: examples/engines/sglang_install.py makes one):

    .venv-sglang/bin/python examples/engines/sglang_serve.py --port 30000

Becomes the server's process: SIGTERM ends it. /health answers 200 when it serves, after 20 to 60 s.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from vllm_serve import make_model


def command(options: argparse.Namespace, model: Path) -> list[str]:
    """The server, with the flags that show most."""
    return [
        *(sys.executable, "-m", "sglang.launch_server", "--model-path", str(model), "--load-format", "dummy"),
        *("--served-model-name", options.name, "--host", "127.0.0.1", "--port", str(options.port)),
        *("--device", "cpu", "--attention-backend", "torch_native", "--sampling-backend", "pytorch"),
        *("--dtype", "bfloat16", "--context-length", "1024", "--max-total-tokens", str(options.tokens)),
        *("--enable-metrics", "--enable-cache-report", "--disable-cuda-graph", "--skip-server-warmup"),
        "--trust-remote-code",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description="Serve a tiny random model with SGLang on the CPU, on loopback.")
    parser.add_argument("--port", type=int, default=30000)
    parser.add_argument("--name", default="tiny", help="name of the model")
    parser.add_argument("--tokens", type=int, default=4096, help="size of the KV cache in tokens")
    options = parser.parse_args()
    folder = Path(tempfile.gettempdir()) / f"infersiege-tiny-llama-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    try:
        make_model(folder)
    except ImportError as error:
        print(f"error: {error}\nhint: run it with the Python of an environment that has SGLang", file=sys.stderr)
        sys.exit(2)
    environ = {**os.environ, "SGLANG_USE_CPU_ENGINE": "1", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    environ.setdefault("OMP_NUM_THREADS", "1")
    words = command(options, folder)
    os.execve(words[0], words, environ)


if __name__ == "__main__":
    main()
