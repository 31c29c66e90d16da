"""From the facts of one exchange to its outcome, its error class and its token counts. Pure.

The first of `JUDGES` that has a finding decides; their order is the meaning:

1. what the server said stands before what happened to the connection: an HTTP status, an error inside the stream;
2. then what ended the exchange: ourselves (cancelled), a deadline, a cut;
3. then whether what came is an answer at all, and can be read;
4. then whether the answer is one that counts: its finish reason, its text, its end.

A streamed answer that said it is over (`[DONE]`) is not undone by what happens to its connection afterwards.
"""

from __future__ import annotations

import email.utils
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from infersiege.channels.accounting import TokenAccount, account_tokens, estimate_tokens, has_output
from infersiege.channels.dialect import Decoded, Dialect, StreamFault
from infersiege.channels.faults import class_of_status, class_of_stream_error, gist, json_of, server_error, text_of
from infersiege.channels.redaction import Secrets, one_line, scrub
from infersiege.records import ErrorClass, Outcome
from infersiege.wire.exchange import ExchangeResult, Fault

__all__ = [
    "JUDGES",
    "Conclusion",
    "TokenAccount",
    "account_tokens",
    "conclude",
    "decode_body",
    "estimate_tokens",
    "retry_after_ns",
    "scrub",
]

GOOD_FINISH: frozenset[str] = frozenset(
    {"stop", "tool_calls", "function_call", "length"}  # OpenAI's, so of all engines
    | {"eos_token", "stop_sequence"}  # TGI
    | {"end_turn", "tool_use", "max_tokens", "model_length"}  # Anthropic, gateways to it, Gemini and Mistral
    | {"pause_turn", "model_context_window_exceeded"}  # Anthropic
    | {"completed", "max_output_tokens"}  # Responses: its status, and why it is `incomplete`
)
"""Finish reasons of a full answer, in lower case."""

LENGTH_FINISH: frozenset[str] = frozenset(
    {"length", "max_tokens", "model_length", "max_output_tokens", "model_context_window_exceeded"}
)
"""Of these: the output limit or the context was reached. A full answer, flagged `length`."""

FILTER_FINISH: frozenset[str] = frozenset({"content_filter", "sensitive", "safety", "refusal"})
"""The server took the answer away: class `content_filter`. OpenAI and Azure; Zhipu; Gemini; Anthropic."""

END_OF_TURN_TEXT: tuple[str, ...] = (
    *("<|im_end|>", "<|eot_id|>", "<|endoftext|>", "<|end|>", "<end_of_turn>", "</s>", "<|return|>"),
    "<｜end▁of▁sentence｜>",
)
"""End-of-turn tokens that leak as text: the text stays as it is, the turn is flagged (ST-32)."""


class Conclusion(msgspec.Struct, frozen=True, kw_only=True):
    """What a TurnRecord says about how its turn ended."""

    outcome: Outcome
    error_class: ErrorClass | None
    """None for ok and cancelled."""
    error_detail: str | None
    """One line, redacted, at most 300 characters; None for ok."""
    finish_reason: str | None
    """As the server wrote it."""
    flags: tuple[str, ...]
    retry_after_ns: int | None


class _Facts(NamedTuple):
    result: ExchangeResult
    decoded: Decoded | None
    stream_asked: bool
    parse_fault: Fault | StreamFault | None
    unterminated: bool
    over: bool
    """The stream said that it is over."""


class _Finding(NamedTuple):
    error_class: ErrorClass | None
    """None: cancelled."""
    detail: str


def conclude(
    result: ExchangeResult,
    *,
    decoded: Decoded | None,
    stream_asked: bool,
    parse_fault: Fault | StreamFault | None = None,
    unterminated: int = 0,
    asked_output_tokens: int | None = None,
    wall_ns: int | None = None,
    secrets: Sequence[str] = (),
) -> Conclusion:
    """Judge one exchange.

    `decoded`: of the stream's decoder, or of `decode_body`; None where there was nothing to decode. `unterminated`:
    events that the end of the stream cut off. `wall_ns`: time of the answer since the Unix epoch, for a Retry-After
    that is a date (the answer's own Date is preferred). `secrets`: texts that must not show up in `error_detail`.
    """
    over = result.streamed and decoded is not None and decoded.done
    facts = _Facts(result, decoded, stream_asked, parse_fault, bool(unterminated), over)
    finding = next((found for judge in JUDGES if (found := judge(facts)) is not None), None)
    if finding is None:
        outcome = Outcome.OK
    else:
        outcome = Outcome.CANCELLED if finding.error_class is None else Outcome.FAILED
    return Conclusion(
        outcome=outcome,
        error_class=finding.error_class if finding is not None else None,
        error_detail=one_line(Secrets(secrets).scrub(finding.detail)) if finding is not None else None,
        finish_reason=decoded.finish_reason if decoded is not None else None,
        flags=tuple(dict.fromkeys(_flags(facts, outcome, asked_output_tokens))),
        retry_after_ns=retry_after_ns(result.headers, wall_ns),
    )


def decode_body(dialect: Dialect, result: ExchangeResult) -> tuple[Decoded | None, Fault | None]:
    """The answer of an exchange that was not streamed, and why it can't be read.

    Nothing for another status than 2xx, for an empty body and for a page: `conclude` reads those itself.
    """
    if result.streamed or not _is_success(result.status) or not result.body.strip() or _is_page(result):
        return None, None
    try:
        return dialect.decode_whole(result.body), None
    except ValueError as error:
        return None, Fault(error_class=ErrorClass.PARSE, detail=f"the answer can't be read: {error}")


# ---------------------------------------------------------------------------------------------------- judges


def _refused(facts: _Facts) -> _Finding | None:
    """A status that is no success. It stands even if the connection broke afterwards (a 413 in mid-upload)."""
    result = facts.result
    status = result.status
    if status is None or _is_success(status):
        return None
    if status < 400:
        target = result.headers.get("location", "nowhere")
        return _Finding(
            ErrorClass.BAD_REQUEST,
            f"HTTP {status} redirects to {target}; redirects are not followed, so name the final address in base_url",
        )
    text = text_of(result.body)
    error = server_error(json_of(text))
    said = error.describe() if error is not None else gist(text)
    return _Finding(class_of_status(status, error, text), f"HTTP {status}" + (f": {said}" if said else ", no body"))


def _said_error(facts: _Facts) -> _Finding | None:
    """An error inside a stream, or as the body of a 200 (ST-14, ST-27), whatever else came with it."""
    if facts.decoded is not None and facts.decoded.fault is not None:
        return _Finding(facts.decoded.fault.error_class, facts.decoded.fault.detail)
    return None


def _cancelled(facts: _Facts) -> _Finding | None:
    fault = facts.result.fault
    if fault is not None and fault.error_class is None and not facts.over:
        return _Finding(None, fault.detail)
    return None


def _broke(facts: _Facts) -> _Finding | None:
    fault = facts.result.fault
    if fault is not None and not facts.over:
        return _Finding(fault.error_class, fault.detail)
    return None


def _no_answer(facts: _Facts) -> _Finding | None:
    if facts.result.status is None:
        return _Finding(ErrorClass.TRUNCATED, "the connection ended before an answer began")
    return None


def _cut(facts: _Facts) -> _Finding | None:
    """The body did not end as HTTP says it must (ST-20 c), or ended inside an event."""
    if facts.over:
        return None
    if not facts.result.complete:
        return _Finding(ErrorClass.TRUNCATED, "the connection was cut in the middle of the answer")
    if facts.unterminated and facts.parse_fault is not None:
        return _Finding(ErrorClass.TRUNCATED, "the stream ended in the middle of an event")
    return None


def _no_stream(facts: _Facts) -> _Finding | None:
    """A stream was asked, a 200 with some other body came (ST-27): no time of it means anything."""
    result = facts.result
    if result.streamed or (not facts.stream_asked and (facts.decoded is not None or facts.parse_fault is not None)):
        return None
    text = text_of(result.body)
    content_type = result.headers.get("content-type", "none")
    if not text.strip():
        return _Finding(ErrorClass.NO_OUTPUT, f"HTTP {result.status} with an empty body")
    value = json_of(text)
    error = server_error(value)
    if error is not None:
        return _Finding(class_of_stream_error(error), f"HTTP {result.status} with an error in it: {error.describe()}")
    if isinstance(value, dict) and _is_whole_answer(value):
        return _Finding(
            ErrorClass.STREAM_ERROR,
            f"a stream was asked, a whole answer came (content type {content_type}): set stream = false",
        )
    if value is not None and text.lstrip().startswith(("data:", "event:", ":")):
        return _Finding(ErrorClass.STREAM_ERROR, f"the answer looks like a stream but says content type {content_type}")
    return _Finding(
        ErrorClass.NO_OUTPUT, f"HTTP {result.status} without an answer (content type {content_type}): {gist(text)}"
    )


def _unreadable(facts: _Facts) -> _Finding | None:
    if facts.parse_fault is not None:
        return _Finding(facts.parse_fault.error_class or ErrorClass.PARSE, facts.parse_fault.detail)
    return None


def _bad_finish(facts: _Facts) -> _Finding | None:
    """A finish reason that is not of a full answer (ST-17).

    One that nobody knows fails too: counting it as an answer would hide the next engine's `abort`.
    """
    reason = facts.decoded.finish_reason if facts.decoded is not None else None
    if reason is None or reason.lower() in GOOD_FINISH:
        return None
    if reason.lower() in FILTER_FINISH:
        return _Finding(ErrorClass.CONTENT_FILTER, f"finish reason {reason}: the server withheld the answer")
    return _Finding(ErrorClass.STREAM_ERROR, f"finish reason {reason}: not the end of a full answer")


def _nothing(facts: _Facts) -> _Finding | None:
    """A success without a single token is none (TK-02)."""
    if facts.decoded is not None and has_output(facts.decoded):
        return None
    counted = (
        facts.decoded.usage.output_tokens if facts.decoded is not None and facts.decoded.usage is not None else None
    )
    more = f"; its usage claims {counted} output tokens" if counted else ""
    return _Finding(ErrorClass.NO_OUTPUT, f"HTTP {facts.result.status} and not one token of output{more}")


def _no_end(facts: _Facts) -> _Finding | None:
    """A clean end of the connection with neither finish reason nor `[DONE]` (ST-20 b); no `message_stop` (ST-16)."""
    decoded = facts.decoded
    if not facts.result.streamed or facts.over or decoded is None:
        return None
    if decoded.end_event is not None:
        return _Finding(ErrorClass.TRUNCATED, f"the stream ended without {decoded.end_event}")
    if decoded.finish_reason is None:
        return _Finding(ErrorClass.TRUNCATED, "the stream ended with neither a finish reason nor [DONE]")
    return None


JUDGES: tuple[Callable[[_Facts], _Finding | None], ...] = (
    _refused,
    _said_error,
    _cancelled,
    _broke,
    _no_answer,
    _cut,
    _no_stream,
    _unreadable,
    _bad_finish,
    _nothing,
    _no_end,
)
"""The order of judgement. No finding of any of them: the turn is ok."""


def _flags(facts: _Facts, outcome: Outcome, asked_output_tokens: int | None) -> list[str]:
    """Oddities that do not fail a turn."""
    decoded, result = facts.decoded, facts.result
    flags: list[str] = []
    if facts.unterminated:
        flags.append("unterminated_event")
    if facts.over and (result.fault is not None or not result.complete):
        flags.append("cut_after_done")
    if result.streamed and not facts.stream_asked:
        flags.append("stream_unasked")
    if decoded is None:
        return flags
    flags += decoded.flags
    usage = decoded.usage
    if has_output(decoded):
        if usage is None or usage.output_tokens is None:
            flags.append("usage_missing")
        elif usage.output_tokens == 0:
            flags.append("usage_zero")
    if outcome is Outcome.OK:
        if result.streamed and not decoded.done:
            flags.append("no_done")
        reason = (decoded.finish_reason or "").lower()
        if not reason:
            flags.append("no_finish")
        elif reason in LENGTH_FINISH:
            flags.append("length")
            counted = usage.output_tokens if usage is not None else None
            if counted and asked_output_tokens is not None and counted < asked_output_tokens:
                flags.append("clipped")  # vLLM and llama.cpp: prompt and limit together exceed the context
    if decoded.text.rstrip().endswith(END_OF_TURN_TEXT):
        flags.append("end_token_text")
    return flags


# ---------------------------------------------------------------------------------------------------- text


def retry_after_ns(headers: dict[str, str], wall_ns: int | None) -> int | None:
    """How long the server asks us to wait: `retry-after-ms`, or `retry-after` in seconds or as an HTTP date.

    A date is held against the answer's own Date, else `wall_ns`. None: not said, or not to be understood.
    """
    if (milliseconds := _number(headers.get("retry-after-ms"))) is not None:
        return round(milliseconds * 1e6)
    value = headers.get("retry-after")
    if (seconds := _number(value)) is not None:
        return round(seconds * 1e9)
    until, now = _date_s(value), _date_s(headers.get("date"))
    if now is None and wall_ns is not None:
        now = wall_ns / 1e9
    if until is None or now is None:
        return None
    return max(0, round((until - now) * 1e9))


def _number(value: str | None) -> float | None:
    try:
        number = float(value or "")
    except ValueError:
        return None
    return max(0.0, number) if abs(number) < 1e9 else None  # NaN fails the comparison


def _date_s(value: str | None) -> float | None:
    try:
        return email.utils.parsedate_to_datetime(value or "").timestamp()
    except (ValueError, TypeError, OverflowError, IndexError):
        return None


def _is_success(status: int | None) -> bool:
    return status is not None and 200 <= status < 300


def _is_whole_answer(value: dict[str, object]) -> bool:
    """Of OpenAI (chat, completions), of Anthropic, of Responses."""
    return bool(value.get("choices")) or value.get("type") == "message" or value.get("object") == "response"


def _is_page(result: ExchangeResult) -> bool:
    return "html" in result.headers.get("content-type", "") or result.body.lstrip()[:1] == b"<"
