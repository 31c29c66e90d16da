"""The load tools: how each is told to do the same work, where it leaves its figures, what else it does."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from loadtools import outputs
from loadtools.outputs import Reported, UnreadableError

PROMPT_TOKENS = 32
MODEL = "fake"
OURS = "infersiege"


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """The same for every tool: a closed loop of `streams`, until `requests` are done."""

    url: str
    """Of the server, without a path."""
    folder: Path
    """Empty, the tool's working directory; absolute."""
    tokenizer: Path
    """Folder of a tokenizer as transformers loads it; absolute."""
    streams: int
    requests: int
    tokens: int
    """Of each answer; one event each."""


class LoadTool(msgspec.Struct, frozen=True, kw_only=True):
    command: Callable[[Path, Work], list[str]]
    """Takes the Python of the tool's environment."""
    files: tuple[str, ...]
    """Below the working directory: what `read` needs, as a JSON array where there are several; globs are allowed."""
    read: outputs.Reader
    offline: bool = True
    """Whether HF_HUB_OFFLINE=1 may be set: one tool then refuses a tokenizer that is a folder."""
    last_line: bool = False
    """The file has a JSON object on each line, of which the last one counts."""
    includes: str
    """What it does in its process besides the requests, for whoever compares the figures."""


def figures(tool: LoadTool, folder: Path) -> Reported:
    """What the tool left below `folder`. Raises UnreadableError."""
    texts = []
    for pattern in tool.files:
        found = sorted(folder.glob(pattern))
        if len(found) != 1:
            raise UnreadableError(f"{len(found)} files {pattern}")
        texts.append(found[0].read_text(encoding="utf-8"))
    text = texts[0] if len(texts) == 1 else f"[{','.join(texts)}]"
    return tool.read(text.strip().splitlines()[-1] if tool.last_line else text)


def environment(tool: LoadTool, folder: Path) -> dict[str, str]:
    """Our environment without proxies, and nothing looked up outside. A tool's caches go below `folder`."""
    kept = {key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")}
    kept |= {"HF_HOME": str(folder / "hf"), "MODELSCOPE_CACHE": str(folder / "modelscope"), "DO_NOT_TRACK": "1"}
    kept |= {"VLLM_NO_USAGE_STATS": "1", "TOKENIZERS_PARALLELISM": "false", "NO_PROXY": "127.0.0.1"}
    return kept | ({"HF_HUB_OFFLINE": "1"} if tool.offline else {})


def _program(python: Path, name: str) -> str:
    return str(python.with_name(name))


_PLAN = """
[run]
name = "null server"
stop = {{sessions = {requests}}}
[channel.null]
engine = "generic"
base_url = "{url}/v1"
model = "{model}"
tokenizer = "{tokenizer}/tokenizer.json"
[[workload]]
scenario = "fixed"
trace = "fixed.csv"
[load]
users = {streams}
ramp = "0s"
"""


def _infersiege(python: Path, work: Work) -> list[str]:
    """A trace with one row for each request; the times in it don't matter in a closed loop."""
    row = "2026-01-01 {:02}:{:02}:{:02}," + f"{PROMPT_TOKENS},{work.tokens}"
    rows = [row.format(at // 3600, at // 60 % 60, at % 60) for at in range(work.requests)]
    (work.folder / "fixed.csv").write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows, ""]))
    plan = work.folder / "plan.toml"
    text = _PLAN.format(
        url=work.url, model=MODEL, tokenizer=work.tokenizer, streams=work.streams, requests=work.requests
    )
    plan.write_text(text, encoding="utf-8")
    return [str(python), "-m", "infersiege", "run", str(plan), "--out", "out", "--workers", "1"]


def _aiperf(python: Path, work: Work) -> list[str]:
    return [
        *(_program(python, "aiperf"), "profile", "-m", MODEL, "--url", work.url, "--endpoint-type", "chat"),
        *("--streaming", "--tokenizer", str(work.tokenizer), "--concurrency", str(work.streams)),
        *("--request-count", str(work.requests), "--isl", str(PROMPT_TOKENS), "--osl", str(work.tokens)),
        *("--extra-inputs", "ignore_eos:true", "--extra-inputs", f"min_tokens:{work.tokens}"),
        *("--use-server-token-count", "--no-gpu-telemetry", "--ui", "none", "--artifact-dir", "out"),
    ]


def _guidellm(python: Path, work: Work) -> list[str]:
    return [
        *(_program(python, "guidellm"), "run", "--backend", f"kind=openai_http,target={work.url},model={MODEL}"),
        *("--tokenizer", f"kind=huggingface_auto,model={work.tokenizer}"),
        *("--data", f"kind=synthetic_text,prompt_tokens={PROMPT_TOKENS},output_tokens={work.tokens}"),
        *("--profile", f"kind=concurrent,streams={work.streams}"),
        *("--constraint", f"kind=max_requests,count={work.requests}"),
        *("--output", "kind=json,path=out.json", "--output", "kind=console", "--disable-progress"),
    ]


def _evalscope(python: Path, work: Work) -> list[str]:
    prompt = str(PROMPT_TOKENS)
    return [
        *(_program(python, "evalscope"), "perf", "--model", MODEL, "--api", "openai"),
        *("--url", f"{work.url}/v1/chat/completions", "--tokenizer-path", str(work.tokenizer)),
        *("--dataset", "random", "--min-prompt-length", prompt, "--max-prompt-length", prompt, "--prefix-length", "0"),
        *("--max-tokens", str(work.tokens), "--min-tokens", str(work.tokens), "--parallel", str(work.streams)),
        *("--number", str(work.requests), "--extra-args", json.dumps({"ignore_eos": True})),
        *("--outputs-dir", "out", "--no-timestamp"),
    ]


_VLLM = (
    "import argparse; from vllm.benchmarks.serve import add_cli_args, main; parser = argparse.ArgumentParser(); "
    "add_cli_args(parser); main(parser.parse_args())"
)
"""`vllm bench serve` without the command line of the CPU build, which looks for a distribution named vllm."""


def _vllm(python: Path, work: Work) -> list[str]:
    return [
        *(str(python), "-c", _VLLM, "--backend", "openai-chat", "--base-url", work.url),
        *("--endpoint", "/v1/chat/completions", "--model", MODEL, "--tokenizer", str(work.tokenizer)),
        *("--dataset-name", "random", "--random-input-len", str(PROMPT_TOKENS)),
        *("--random-output-len", str(work.tokens), "--ignore-eos", "--num-prompts", str(work.requests)),
        *("--max-concurrency", str(work.streams), "--metric-percentiles", "50,99"),
        *("--percentile-metrics", "ttft,tpot,itl,e2el", "--save-result", "--result-dir", "."),
        *("--result-filename", "out.json"),
    ]


def _sglang(python: Path, work: Work) -> list[str]:
    return [
        *(str(python), "-m", "sglang.bench_serving", "--backend", "sglang-oai-chat", "--base-url", work.url),
        *("--model", MODEL, "--tokenizer", str(work.tokenizer), "--dataset-name", "random-ids"),
        *("--random-input-len", str(PROMPT_TOKENS), "--random-output-len", str(work.tokens)),
        *("--random-range-ratio", "1", "--num-prompts", str(work.requests)),
        *("--max-concurrency", str(work.streams), "--warmup-requests", "0", "--output-file", "out.jsonl"),
    ]


TOOLS = {
    OURS: LoadTool(
        command=_infersiege,
        files=("out/summary.json",),
        read=outputs.infersiege,
        includes="master and one worker, a record of each turn on disk, series each second, HTML report; stamps by the "
        "kernel",
    ),
    "vllm": LoadTool(
        command=_vllm,
        files=("out.json",),
        read=outputs.serving,
        includes="one process; all prompts are made first; one request before the load; counts tokens by the usage",
    ),
    "aiperf": LoadTool(
        command=_aiperf,
        files=("out/profile_export_aiperf.json",),
        read=outputs.aiperf,
        offline=False,
        includes="several processes, workers and record processors among them; a record of each request on disk; looks "
        "for the server's metrics",
    ),
    "guidellm": LoadTool(
        command=_guidellm,
        files=("out.json",),
        read=outputs.guidellm,
        includes="several processes; the JSON holds each request with its text",
    ),
    "evalscope": LoadTool(
        command=_evalscope,
        files=("out/*/*/benchmark_percentile.json", "out/*/*/benchmark_summary.json"),
        read=outputs.evalscope,
        includes="each request in SQLite, HTML report",
    ),
    "sglang": LoadTool(
        command=_sglang,
        files=("out.jsonl",),
        read=outputs.serving,
        last_line=True,
        includes="one process; all prompts are made first; tokenises each answer again at the end",
    ),
}
"""In the order of the table."""


def our_python() -> Path:
    return Path(sys.executable)
