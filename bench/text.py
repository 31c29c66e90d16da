"""How fast synthesised text is made, and how near its tokens come to what was asked for.

    python bench/text.py                              # a byte-level BPE, trained on this project's docs
    python bench/text.py --tokenizer tokenizer.json   # a model's own

Speeds are bytes of UTF-8 per second on one core, the best of several rounds. Errors are |tokens - asked| / asked over
texts of 100 to 4,000 tokens: with the tokenizer, and calibrated by counts of some ten prompts. Exit code 1, with a line
for each, when a target is missed. Needs the package `tokenizers`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from infersiege.records import BlockText, Message, TextLengths
from infersiege.tokens.frame import calibrated
from infersiege.tokens.local import LocalTokenizer
from infersiege.tokens.probe import Probe
from infersiege.traces import Synthesizer
from infersiege.traces.synthesis.material import Material, key_of

SLOWEST_MB_S = 50.0
LARGEST_ERROR = {"tokenizer": 0.02, "calibrated": 0.05}
LONGEST_HOLD_MS = 20.0
"""A text of a million tokens in one piece."""
_SEED = 1


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tokenizer", type=Path, help="tokenizer.json (default: one is trained)")
    parser.add_argument("--rounds", type=int, default=5)
    return parser.parse_args()


def trained(folder: Path) -> Path:
    """A tokenizer.json of the usual kind, trained on the project's docs and the material itself."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=8_000, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    root = Path(__file__).parents[1]
    texts = [file.read_text("utf-8") for file in sorted((*root.glob("*.md"), *root.glob("docs/**/*.md")))]
    tokenizer.train_from_iterator(texts, trainer)
    path = folder / "tokenizer.json"
    tokenizer.save(str(path))
    return path


class _Counting:
    """Stands for a server that counts prompts by a tokenizer, with a template of 20 tokens and 5 for each message."""

    def __init__(self, count: Callable[[str], int]) -> None:
        self._count = count

    def prompt_tokens(self, messages: list[Message]) -> int:
        return 20 + 5 * (len(messages) - 1) + sum(self._count(str(message["content"])) for message in messages)


def speeds(language: str, lengths: TextLengths, rounds: int) -> dict[str, float]:
    """MB/s of blocks of 512 tokens made anew and found again, and ms for a million tokens."""
    synthesizer = Synthesizer(_SEED, lengths={language: lengths}, cache_bytes=1 << 30)
    synthesizer.block("warm", 0, 10, language)
    cold = cached = 0.0
    hold_s = float("inf")
    for attempt in range(rounds):
        for found in range(2):
            begun = time.perf_counter()
            texts = [synthesizer.block(f"bench/{attempt}", number, 512, language) for number in range(4_000)]
            took = time.perf_counter() - begun
            speed = sum(len(text.encode()) for text in texts) / took / 1e6
            cold, cached = (cold, max(cached, speed)) if found else (max(cold, speed), cached)
        begun = time.perf_counter()
        synthesizer.block("long", attempt, 1_000_000, language)
        hold_s = min(hold_s, time.perf_counter() - begun)
    return {"cold": cold, "cached": cached, "hold_ms": hold_s * 1e3}


def errors(language: str, lengths: TextLengths, count: Callable[[str], int]) -> tuple[float, float]:
    """(p50, p95)."""
    synthesizer = Synthesizer(_SEED, lengths={language: lengths}, cache_bytes=0)
    found = []
    for number in range(400):
        asked = 100 + number * 3_900 // 399
        block = BlockText(scope="error", ids=(number,), tokens=(asked,), language=language)
        found.append(abs(count(synthesizer.text(block)) + lengths.separator_tokens - asked) / asked)
    found.sort()
    return found[199], found[379]


def main() -> int:
    options = arguments()
    missed: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        path = options.tokenizer or trained(Path(folder))
        from tokenizers import Tokenizer

        library: Any = Tokenizer.from_file(str(path))
        library.no_truncation()
        local = LocalTokenizer(path)

    def count(text: str) -> int:
        return len(library.encode(text, add_special_tokens=False).ids)

    print("| language | lengths by | cold, MB/s | cached, MB/s | 1M tokens, ms | error p50 | error p95 |")
    print("|---|---|---|---|---|---|---|")
    for language in ("en", "zh"):
        probe = Probe(Material(key_of(_SEED), language))
        ways = {
            "tokenizer": probe.lengths(local.begun(probe.text, probe.offsets), "tokenizer"),
            "calibrated": calibrated(language, _SEED, _Counting(count)),
        }
        for way, lengths in ways.items():
            fast = speeds(language, lengths, options.rounds)
            p50, p95 = errors(language, lengths, count)
            print(
                f"| {language} | {way} | {fast['cold']:,.0f} | {fast['cached']:,.0f} | {fast['hold_ms']:.1f} | "
                f"{p50:.2%} | {p95:.2%} |"
            )
            name = f"{language}, {way}"
            if fast["cold"] < SLOWEST_MB_S:
                missed.append(f"{name}: {fast['cold']:.0f} MB/s are fewer than {SLOWEST_MB_S:.0f}")
            if fast["hold_ms"] > LONGEST_HOLD_MS:
                missed.append(
                    f"{name}: a million tokens take {fast['hold_ms']:.0f} ms, more than {LONGEST_HOLD_MS:.0f}"
                )
            if p95 > LARGEST_ERROR[way]:
                missed.append(f"{name}: an error of {p95:.1%} (p95) is more than {LARGEST_ERROR[way]:.0%}")
    for line in missed:
        print(f"missed: {line}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
