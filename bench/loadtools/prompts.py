"""What the tools write prompts with: a small tokenizer of bytes with a chat template, made here, offline."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

_TEXT = "the old harbour has a wall against the sea, and ships wait behind it until the wind is fair"
_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
_END = "<|endoftext|>"


def write_tokenizer(folder: Path) -> None:
    """tokenizer.json and tokenizer_config.json, as transformers' AutoTokenizer loads them from a folder."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=[_END], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator([_TEXT] * 10, trainer)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 131072, "chat_template": _TEMPLATE}
    settings |= dict.fromkeys(("bos_token", "eos_token", "pad_token"), _END)
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
