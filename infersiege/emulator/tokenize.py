"""`POST /tokenize` of the engines that have it: the tokens of a text, by the emulator's own tokenizer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from zlib import crc32

from infersiege.emulator.refusal import invalid
from infersiege.emulator.settings import EmulatorSettings
from infersiege.emulator.text import prompt_tokens, tokenise


def _byte_letters() -> str:
    """How byte-level BPE spells bytes: printable ones as they are, the others from U+0100 on (GPT-2's table)."""
    plain = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return "".join(chr(byte if byte in plain else next(others)) for byte in range(256))


_BYTE_LETTERS = _byte_letters()


def _id(token: str) -> int:
    return crc32(token.encode("utf-8", "surrogatepass")) % 50_000


def _text(body: Any, field: str) -> str:
    value = body.get(field) if isinstance(body, dict) else None
    if not isinstance(value, str):
        raise invalid(field, f"{field} must be a string")
    return value


def _spelled(token: str) -> str:
    return "".join(_BYTE_LETTERS[byte] for byte in token.encode("utf-8", "surrogatepass"))


def _vllm(body: Any, settings: EmulatorSettings) -> Any:
    """Of a text in `prompt`, or of `messages` with the chat template."""
    if isinstance(body, dict) and isinstance(body.get("messages"), list):
        tokens = prompt_tokens(body["messages"], body.get("tools"))
    else:
        tokens = tokenise(_text(body, "prompt"))
    return {
        "count": len(tokens),
        "max_model_len": settings.spec.max_model_len,
        "tokens": [_id(token) for token in tokens],
        "token_strs": [_spelled(token) for token in tokens] if body.get("return_token_strs") else None,
    }


def _sglang(body: Any, settings: EmulatorSettings) -> Any:
    """Of a text in `prompt`, or of each of a list of texts."""
    value = body.get("prompt") if isinstance(body, dict) else None
    several = isinstance(value, list) and all(isinstance(text, str) for text in value)
    texts = value if several and value is not None else [_text(body, "prompt")]
    tokens = [[_id(token) for token in tokenise(text)] for text in texts]
    counts = [len(of_text) for of_text in tokens]
    told = {"tokens": tokens, "count": counts} if several else {"tokens": tokens[0], "count": counts[0]}
    return {**told, "max_model_len": settings.spec.max_model_len}


def _llama_cpp(body: Any, settings: EmulatorSettings) -> Any:
    tokens = tokenise(_text(body, "content"))
    if body.get("with_pieces"):
        return {"tokens": [{"id": _id(token), "piece": token} for token in tokens]}
    return {"tokens": [_id(token) for token in tokens]}


Tokenize = Callable[[Any, EmulatorSettings], Any]
"""The request's JSON -> the answer's. Raises RefusedError."""

TOKENIZE: dict[str, Tokenize] = {"vllm": _vllm, "sglang": _sglang, "llama.cpp": _llama_cpp}
"""Profile -> what its `/tokenize` answers; clouds have none."""
