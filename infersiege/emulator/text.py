"""Tokens and text of the emulated model: a tokenizer of its own, a chat template, and answers made of plain words.

The tokenizer is greedy and context-free: five ASCII characters, or two characters below U+2E80, or one character from
there on (CJK, emoji) are one token. So a prefix of a text gives a prefix of its tokens, and an answer that a client
sends back as history gives the tokens it was generated from: what prefix caching by content needs.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from hashlib import blake2b
from itertools import accumulate
from typing import Any

ASCII_PER_TOKEN = 5
"""Near what real tokenizers make of plain English words (about 5.4)."""

_PIECE = re.compile(rf"[\x00-\x7f]{{1,{ASCII_PER_TOKEN}}}|[\x80-\u2e7f]{{1,2}}|[^\x00-\u2e7f]", re.DOTALL)
_CJK = re.compile(r"[\u2e80-\u9fff\uf900-\ufaff]")

_GENERATION_PROMPT = ("<|im_start|>", "assistant", "\n")

_VOCABULARY = (
    "the of and to in a is that for it as with on by this are be from or an at not have which one all their has been "
    "when first more time new some other about then into than only two people water system model value result state "
    "order number point question answer reason example process measure change between under before after second long "
    "large small simple common known given early late clear deep light green river mountain city house window table "
    "paper letter music engine signal garden history science language"
)

_VOCABULARY_ZH = (
    "我们 可以 这个 问题 首先 因此 例如 时间 系统 模型 结果 数据 方法 过程 需要 如果 通过 其中 比较 重要 "
    "简单 部分 城市 河流 历史 科学 语言 工作 学习 发展 说明 原因 一般 可能 然后 最后 不同 同时 没有 使用"
)

_WORDS = _VOCABULARY.split()
_WORDS_ZH = _VOCABULARY_ZH.split()


def tokenise(text: str) -> list[str]:
    """The tokens of one text; joined they are the text again."""
    return _PIECE.findall(text)


def is_chinese(text: str) -> bool:
    """Whether a text holds a CJK character; the answer then is Chinese."""
    return _CJK.search(text) is not None


def content_text(content: Any) -> str:
    """The text of a message's content: a string, null, or a list of parts (parts without text count by their JSON)."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        parts = []
        for part in content:
            text = part.get("text") if isinstance(part, Mapping) else None
            parts.append(text if isinstance(text, str) else json.dumps(part, ensure_ascii=False))
        return "".join(parts)
    return json.dumps(content, ensure_ascii=False)


def prompt_tokens(messages: Iterable[Mapping[str, Any]], tools: Sequence[Any] | None) -> list[str]:
    """Tokens of the chat-templated prompt: the tools as a leading block, each message framed, the generation prompt.

    A message costs its text and five tokens of frame, the generation prompt three.
    """
    tokens: list[str] = []
    if tools:
        tokens += ["<|im_start|>", "tools", "\n"]
        tokens += tokenise(json.dumps(tools, ensure_ascii=False))
        tokens += ["<|im_end|>", "\n"]
    for message in messages:
        tokens += ["<|im_start|>", str(message.get("role", "user")), "\n"]
        tokens += tokenise(content_text(message.get("content")))
        calls = message.get("tool_calls")
        if calls:
            tokens += tokenise(json.dumps(calls, ensure_ascii=False))
        tokens += ["<|im_end|>", "\n"]
    tokens += _GENERATION_PROMPT
    return tokens


def block_chain(tokens: Sequence[str], block_size: int, known: tuple[bytes, ...] = ()) -> tuple[bytes, ...]:
    """One key per full block of tokens; a key covers everything before it, so equal keys mean equal prefixes.

    `known` are the keys of the leading blocks, if the caller has them; they are not computed again.
    """
    chain = list(known)
    parent = chain[-1] if chain else b""
    for start in range(len(chain) * block_size, len(tokens) - block_size + 1, block_size):
        block = "\x1f".join(tokens[start : start + block_size]).encode("utf-8", "surrogatepass")
        parent = blake2b(block, key=parent, digest_size=16).digest()
        chain.append(parent)
    return tuple(chain)


@cache
def corpus_of(chinese: bool) -> tuple[str, tuple[int, ...]]:
    """A fixed text of 2,000 made-up sentences, and where each starts: slices cost far less than fresh sentences."""
    rng = random.Random(0)
    words = _WORDS_ZH if chinese else _WORDS
    sentences: list[str] = []
    for _ in range(2_000):
        chosen = rng.choices(words, k=rng.randint(6, 14))
        sentences.append("".join(chosen) + "。" if chinese else " ".join(chosen).capitalize() + ". ")
    ends = accumulate(map(len, sentences), initial=0)
    return "".join(sentences), tuple(ends)[:-1]


def prose(rng: random.Random, tokens: int, *, chinese: bool) -> list[str]:
    """Exactly so many tokens of real-looking text, starting at the beginning of a sentence."""
    corpus, starts = corpus_of(chinese)
    start = rng.choice(starts)
    wanted = tokens if chinese else ASCII_PER_TOKEN * tokens
    taken = corpus[start : start + wanted]
    if len(taken) < wanted:
        taken += (corpus * (wanted // len(corpus) + 1))[: wanted - len(taken)]
    return tokenise(taken)


def _property_value(schema: Any, rng: random.Random) -> Any:
    if not isinstance(schema, Mapping):
        return None
    choices = schema.get("enum")
    if isinstance(choices, list) and choices:
        return rng.choice(choices)
    samples: dict[Any, Any] = {
        "string": "",
        "integer": rng.randint(1, 99),
        "number": 0.5,
        "boolean": True,
        "array": [],
        "object": {},
    }
    kind = schema.get("type")
    return samples.get(kind) if isinstance(kind, str) else None


def call_arguments(parameters: Any, rng: random.Random, tokens: int) -> str:
    """JSON arguments for a tool's schema, as long as `tokens` tokens allow.

    The first free string takes words as filler, else blanks inside the braces do. Fewer tokens than the bare object
    needs: the bare object is given, and the caller cuts it.
    """
    properties = parameters.get("properties") if isinstance(parameters, Mapping) else None
    values: dict[str, Any] = {}
    filler_key: str | None = None
    for name, schema in (properties if isinstance(properties, Mapping) else {}).items():
        values[name] = _property_value(schema, rng)
        if filler_key is None and values[name] == "" and isinstance(values[name], str):
            filler_key = name
    bare = json.dumps(values)
    room = ASCII_PER_TOKEN * tokens - len(bare)
    if room <= 0:
        return bare
    if filler_key is None:
        return bare[:-1] + " " * room + "}"
    values[filler_key] = "".join(prose(rng, tokens, chinese=False))[:room]
    return json.dumps(values)
