"""Token counts by a local tokenizer.json (package `tokenizers`, the extra of that name)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from infersiege.tokens.probe import CountError


class LocalTokenizer:
    """A tokenizer.json as model repositories have it."""

    def __init__(self, path: Path) -> None:
        """Raises CountError for a missing package, and for a file that is none."""
        try:
            from tokenizers import Tokenizer
        except ImportError:
            raise CountError("the package tokenizers is not installed (pip install 'infersiege[tokenizers]')") from None
        try:
            self._tokenizer = Tokenizer.from_str(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise CountError(f"{path} can't be read: {error.strerror or error}") from None
        except UnicodeDecodeError:
            raise CountError(f"{path} is no tokenizer.json: it is not UTF-8") from None
        except Exception as error:  # noqa: BLE001 - the library raises plain Exception for every fault of a file
            raise CountError(f"{path} is no tokenizer.json: {str(error)[:200]}") from None
        # A file may ask to cut texts at the model's context, or to fill them up.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    def begun(self, text: str, offsets: Sequence[int]) -> list[int]:
        """As `Counter`."""
        encoded = self._tokenizer.encode(text, add_special_tokens=False)
        starts = np.fromiter((start for start, _ in encoded.offsets), dtype=np.int64, count=len(encoded.offsets))
        found: list[int] = np.searchsorted(starts, np.asarray(offsets), side="left").tolist()
        return found
