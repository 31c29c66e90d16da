"""Token counts inside an Anthropic answer. Pure."""

from __future__ import annotations

from infersiege.channels.dialect import Usage
from infersiege.channels.openai_usage import token_count

_INPUT = "input_tokens"
_CACHES = ("cache_read_input_tokens", "cache_creation_input_tokens")
_OUTPUT = "output_tokens"


class AnthropicCounters:
    """Usage of one answer (TK-12). Counters are cumulative, in `message_start` and in each `message_delta`.

    Per field the last present value wins, but for zeroes that mean nothing: an input of 0 in a usage that names no
    other input either, and an output of 0 after a real one. `input_tokens` and the caches are one set: counts of two
    events are never added up.
    """

    __slots__ = ("_counts", "odd")

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self.odd = False
        """A count was no whole number from 0 up, or a known cache is missing from the final input; it was left out."""

    def take(self, usage: object) -> None:
        """The `usage` of one event, or of a whole answer."""
        if not isinstance(usage, dict):
            self.odd = self.odd or usage is not None
            return
        told = {
            name: count for name in (_INPUT, *_CACHES, _OUTPUT) if (count := self._count(usage.get(name))) is not None
        }
        lifetimes = usage.get("cache_creation")
        if _CACHES[1] not in told and isinstance(lifetimes, dict):
            written = [count for value in lifetimes.values() if (count := token_count(value)) is not None]
            told |= {_CACHES[1]: sum(written)} if written else {}
        details = usage.get("output_tokens_details")
        if isinstance(details, dict):
            reasoning = self._count(details.get("thinking_tokens", details.get("reasoning_tokens")))
            told |= {"reasoning": reasoning} if reasoning is not None else {}
        if not any(told.get(name) for name in (_INPUT, *_CACHES)):
            # It says nothing of the input; each 0 stands only where nothing was known.
            told = {name: count for name, count in told.items() if count or name not in self._counts}
        elif not told.get(_OUTPUT) and self._counts.get(_OUTPUT):
            told.pop(_OUTPUT, None)
        if any(told.get(name) for name in (_INPUT, *_CACHES)) and _INPUT in told:
            self._one_set(told)
        self._counts |= told

    def _one_set(self, told: dict[str, int]) -> None:
        """A usage with an input of its own: caches that an earlier one named, and this one does not, are not its."""
        lost = [name for name in _CACHES if name not in told and self._counts.get(name)]
        if not lost:
            return
        known = sum(self._counts.get(name, 0) for name in (_INPUT, *_CACHES))
        if told[_INPUT] == known and not any(name in told for name in _CACHES):
            del told[_INPUT]  # a relay tells the sum in the end: the split of it is known
            return
        self.odd = True
        for name in lost:
            del self._counts[name]

    def _count(self, value: object) -> int | None:
        if value is None:
            return None
        count = token_count(value)
        self.odd = self.odd or count is None
        return count

    def usage(self) -> Usage | None:
        """In our terms: `prompt_tokens` is all of the input (CL-06), which `input_tokens` is not."""
        counts = self._counts
        if not counts:
            return None
        fresh, (read, written) = counts.get(_INPUT), map(counts.get, _CACHES)
        return Usage(
            prompt_tokens=None if fresh is None else fresh + (read or 0) + (written or 0),
            cached_tokens=read,
            cache_write_tokens=written,
            output_tokens=counts.get(_OUTPUT),
            reasoning_tokens=counts.get("reasoning"),
        )
