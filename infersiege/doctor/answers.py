"""One small answer, streamed or not: asked as the run will ask, with a prompt that no workload has, and judged."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from infersiege.channels.dialect import DONE, TEXT, Decoded
from infersiege.channels.faults import server_error
from infersiege.channels.request import without
from infersiege.doctor.http import Hear, Reply
from infersiege.doctor.refusals import out_of_room, refused
from infersiege.doctor.target import Target, is_page, json_of
from infersiege.doctor.tools import TOOL
from infersiege.plan.schema import Sampling
from infersiege.wire.sse import EventStream

DROPPABLE: Mapping[str, str] = {
    "stream_options": "token counts are estimates, unless the server tells them anyway",
    "ignore_eos": "output lengths are not fixed",
    "min_tokens": "output lengths are not fixed to the letter",
    "prompt_cache_key": "the server is not told which requests share a session's cache",
    "seed": "answers can't be repeated by their seed",
    "temperature": "the server samples at a temperature of its own",
    "top_p": "the server samples with a nucleus of its own",
    "stop": "answers don't end at the plan's stop strings",
    "stop_sequences": "answers don't end at the plan's stop strings",
}
"""Field that a run can do without (CL-04) -> what becomes of it then."""

_ENOUGH_CHUNKS = 8
_LUMP_NS = 1_000_000
"""Parts that are read within 1 ms came together: one HTTP chunk is read at a time, however many lie in the socket."""
_RUNAWAY = 8
"""So many times the asked tokens in chunks: nobody ends this stream."""


class Answered(msgspec.Struct, frozen=True, kw_only=True):
    """A good answer, and how it came."""

    reply: Reply
    decoded: Decoded
    streamed: bool
    dropped: tuple[str, ...]
    """Fields without which it was asked, because the server refuses them."""
    chunks: int
    """Events with text; 0 for an answer in one piece."""
    reads: tuple[int, ...]
    """When parts with text were read, monotonic ns."""

    @property
    def in_one_burst(self) -> bool:
        """Many chunks came at once (ST-24): in one or two lumps, after a wait that was far longer than they took."""
        if self.chunks < _ENOUGH_CHUNKS or not self.reads:
            return False
        lumps = 1 + sum(later - earlier > _LUMP_NS for earlier, later in zip(self.reads, self.reads[1:], strict=False))
        waited_ns, spread_ns = self.reads[0] - self.reply.sent_ns, self.reads[-1] - self.reads[0]
        return lumps <= 2 and spread_ns * 20 <= waited_ns

    @property
    def tells_pace(self) -> bool:
        """Whether there are chunks enough to judge how they came."""
        return self.chunks >= _ENOUGH_CHUNKS

    @property
    def wait_ms(self) -> float:
        """From the request to the first text."""
        return (self.reads[0] - self.reply.sent_ns) / 1e6 if self.reads else 0.0


def ask(
    target: Target,
    sampling: Sampling,
    *,
    stream: bool,
    max_tokens: int,
    dropped: tuple[str, ...] = (),
    tools: bool = False,
) -> Answered:
    """One answer of a few tokens. Raises DoctorError with what is wrong with it.

    A 400 or 422 that names a field which a run can do without is asked again without it; it counts as the cause only
    if that helps. Fields in `dropped` are not sent to begin with. `tools`: one goes along.
    """
    first: Reply | None = None
    dropped = tuple(dict.fromkeys((*target.channel.drop_fields, *dropped)))
    while True:
        body = request_of(target, sampling, stream=stream, max_tokens=max_tokens, dropped=dropped, tools=tools)
        listener = _Listener(target, max_tokens) if stream else None
        reply = target.fetch("POST", target.url, body, listener)
        if reply.status == 200:
            break
        first = first or reply
        named = _named_field(reply, _sent(target, body))
        if named is None:
            what = "a small request with a tool" if tools else "a small request"
            refused(target, reply if reply.status not in (400, 422) else first, what, tools=tools)
        dropped = (*dropped, named)
    if reply.encoding is not None:
        target.fail(
            f"{target.url} answers with content-encoding {target.said(reply.encoding)}, which nobody asked for",
            "a proxy packs it: turn that off for this path, packed streams come late and in lumps",
            check="proxy",
        )
    decoded = _streamed(target, reply, listener) if listener is not None else _whole(target, reply)
    _check_content(target, reply, decoded, listener)
    return Answered(
        reply=reply,
        decoded=decoded,
        streamed=stream,
        dropped=dropped,
        chunks=listener.chunks if listener is not None else 0,
        reads=tuple(listener.reads) if listener is not None else (),
    )


def request_of(
    target: Target,
    sampling: Sampling,
    *,
    stream: bool,
    max_tokens: int,
    dropped: tuple[str, ...],
    tools: bool = False,
) -> bytes:
    """The body of a request with a prompt of its own, so that it warms no cache that is measured and meets none."""
    channel = target.channel
    max_tokens = max(max_tokens, target.dialect.least_output_tokens)
    extra = dict(channel.extra_body)
    if channel.prompt_cache_key and "prompt_cache_key" not in dropped:
        extra["prompt_cache_key"] = os.urandom(16).hex()  # as long as a session's
    if channel.ignore_eos and not tools and target.profile.ignore_eos_fields is not None:
        extra = without(target.profile.ignore_eos_fields(max_tokens), dropped) | extra
    asked = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "seed": sampling.seed,
        "stop": list(sampling.stop),
    }
    prompt = f"Preflight {os.urandom(6).hex()}: count aloud from one to ninety-nine, in words."
    return target.dialect.request_body(
        model=channel.model,
        messages=[{"role": "user", "content": prompt}],
        tools=[TOOL] if tools else None,
        max_tokens=max_tokens,
        stream=stream,
        include_usage=channel.include_usage and "stream_options" not in dropped,
        sampling=without(asked, dropped),
        extra=extra,
    )


def _sent(target: Target, body: bytes) -> tuple[str, ...]:
    """Fields of the request that could be left out. What the plan itself sets in extra_body stays."""
    request = json_of(body)
    return tuple(name for name in DROPPABLE if name in request and name not in target.channel.extra_body)


def _named_field(reply: Reply, sent: tuple[str, ...]) -> str | None:
    """The field that a refusal names first: what follows may be a list of those that are allowed."""
    if reply.status not in (400, 422) or reply.encoding is not None:
        return None
    words = reply.body[:65_536].decode("utf-8", "replace").replace("include_usage", "stream_options")
    places = {name: found.start() for name in sent if (found := re.search(rf"(?<!\w){name}(?!\w)", words)) is not None}
    return min(places, key=places.__getitem__, default=None)


# ---------------------------------------------------------------------------------------------------- streams


class _Listener:
    """Decodes a stream while it comes. Called with the answer's head, it says whether to listen at all."""

    def __init__(self, target: Target, max_tokens: int) -> None:
        self.decoder = target.dialect.decoder()
        self.events = EventStream()
        self.flags = 0
        self.chunks = 0
        self.reads: list[int] = []
        self.payloads: list[bytes] = []
        """The first ones, to be quoted."""
        self.no_json: bytes | None = None
        self.runs_away = False
        self.satisfied = False
        """We stopped reading, perhaps in the middle of an event."""
        self._most = max(64, max_tokens) * _RUNAWAY

    def __call__(self, reply: Reply) -> Hear | None:
        is_stream = reply.status == 200 and reply.content_type == "text/event-stream" and reply.encoding is None
        return self._hear if is_stream else None

    def _hear(self, part: bytes, now_ns: int) -> bool:
        before = self.chunks
        self.take(self.events.feed(part))
        if self.chunks > before:
            self.reads.append(now_ns)
        self.runs_away = self.chunks > self._most
        self.satisfied = bool(self.flags & DONE) or self.no_json is not None or self.runs_away
        return self.satisfied

    def take(self, payloads: list[bytes]) -> None:
        for payload in payloads:
            if len(self.payloads) < 1000:
                self.payloads.append(payload)
            try:
                flags = self.decoder.feed(payload)
            except ValueError:
                self.no_json = payload if self.no_json is None else self.no_json
                return
            self.flags |= flags
            self.chunks += bool(flags & TEXT)


def _streamed(target: Target, reply: Reply, heard: _Listener) -> Decoded:
    if reply.content_type != "text/event-stream":
        _not_a_stream(target, reply)
    if heard.no_json is None and not heard.satisfied and not reply.cut:
        heard.take(heard.events.close())
    if heard.no_json is not None:
        target.fail(
            f"{target.url} streams what is no JSON: {target.quote(heard.no_json)}",
            f"is dialect {target.dialect.name} right for this server?",
            check="stream",
        )
    decoded = heard.decoder.decoded()
    if decoded.fault is not None:
        return decoded
    if not heard.payloads and reply.body.strip() and not reply.cut and not _is_comment(reply.body):
        target.fail(
            f"{target.url} says text/event-stream but sends no events: {target.quote(reply.body)}",
            "no server-sent events (lines `data: …` and an empty line): is it the right path, or a proxy's doing?",
            check="stream",
        )
    if heard.runs_away:
        target.fail(
            f"{target.url} streams without end: {heard.chunks} chunks where a few tokens were asked",
            "does the server know max_tokens? something in between may repeat the stream",
            check="stream",
        )
    if reply.cut:
        if not heard.flags & TEXT:
            hint = "the server's log tells more"
            target.fail(f"{target.url} begins to stream but {reply.cut}", hint, check="stream", passing=True)
        _cut_stream(target, reply, decoded, heard)
    elif not heard.flags & DONE and heard.flags & TEXT:
        _no_end(target, decoded)
    return decoded


def _cut_stream(target: Target, reply: Reply, decoded: Decoded, heard: _Listener) -> None:
    """Text came, and then no proper end. A slow engine that was still at it is none of that."""
    if reply.gave_up and not decoded.finish_reason and "silent" not in (reply.cut or ""):
        return
    if reply.gave_up:
        said = "said that it is over" if decoded.finish_reason else f"gave {heard.chunks} chunks"
        target.fail(
            f"{target.url} streams but never ends: it {said}, and then {reply.cut}",
            "neither an end mark such as [DONE] nor the end of the connection came: a proxy that keeps it open?",
            check="stream",
        )
    target.fail(
        f"{target.url} breaks off its stream after {heard.chunks} chunks: {reply.cut}",
        "the server's log tells more; a proxy's time limit?",
        check="stream",
        passing=True,
    )


def _no_end(target: Target, decoded: Decoded) -> None:
    missing = decoded.end_event
    if missing is None and decoded.finish_reason is None:
        missing = "a finish reason or [DONE]"
    if missing is not None:
        target.fail(
            f"{target.url} ends its stream without {missing}: a run takes such answers for cut ones",
            f"is dialect {target.dialect.name} right for this server? a proxy may drop the end",
            check="stream",
        )


def _is_comment(body: bytes) -> bool:
    return all(line[:1] in (b":", b"") or line.startswith((b"event:", b"id:", b"retry:")) for line in body.splitlines())


def _not_a_stream(target: Target, reply: Reply) -> None:
    """Raise: a stream was asked for, a 200 with some other content came (ST-27)."""
    _not_a_page(target, reply)
    kind = target.said(reply.content_type) or "no content type"
    if not reply.body.strip():
        hint = reply.cut or "is base_url that of an LLM server?"
        target.fail(f"{target.url} answers 200 with an empty body ({kind})", hint, check="stream")
    value = json_of(reply.body)
    error = server_error(value)
    if error is not None:
        said = f"{target.url} answers 200 with an error: {target.said(error.describe())}"
        target.fail(said, "the server's log tells more")
    if isinstance(value, dict) and _is_whole_answer(value):
        target.fail(
            f"{target.url} answers in one piece ({kind}) although a stream was asked for",
            "does a proxy collect it? stream = false measures it without TTFT and TPOT",
            check="stream",
        )
    if reply.body.lstrip().startswith((b"data:", b"event:")):
        target.fail(
            f"{target.url} sends events but calls them {kind}, not text/event-stream",
            "what stands in between changes the content type: a run measures no stream then",
            check="stream",
        )
    _check_choices(target, [value])
    target.fail(
        f"{target.url} answers 200 with {kind} instead of a stream: {target.quote(reply.body)}",
        "is base_url that of an LLM server?",
        check="stream",
    )


def _not_a_page(target: Target, reply: Reply) -> None:
    if is_page(reply):
        target.fail(
            f"{reply.url} answers {reply.status} with a web page: this is no LLM API",
            "a user interface, a log-in page or a proxy? base_url must be that of the API",
            check="base URL",
        )


def _whole(target: Target, reply: Reply) -> Decoded:
    _not_a_page(target, reply)
    if reply.cut:
        target.fail(f"{target.url}: the answer was cut: {reply.cut}", "the server's log tells more", passing=True)
    value = json_of(reply.body)
    if server_error(value) is None:
        _check_choices(target, [value])
    try:
        return target.dialect.decode_whole(reply.body)
    except ValueError as error:
        target.fail(
            f"{target.url} answers 200 with no answer of {target.dialect.name} ({error}): {target.quote(reply.body)}",
            "is base_url that of an LLM server?",
        )


# ---------------------------------------------------------------------------------------------------- content


def _check_content(target: Target, reply: Reply, decoded: Decoded, heard: _Listener | None) -> None:
    """Raise for an error inside a 200 (ST-14), and for an answer without anything in it (TK-02)."""
    if decoded.fault is not None:
        detail = target.said(decoded.fault.detail)
        seen = f"{target.url} answers 200 and then an error: {detail}"
        out_of_room(target, seen, decoded.fault.detail, decoded.fault.error_class, passing=True)
        target.fail(seen, "the server's log tells more", passing=True)
    told = decoded.usage.output_tokens if decoded.usage is not None else None
    if decoded.text or decoded.reasoning or decoded.refusal or decoded.tool_calls or told:
        return
    if heard is not None:
        _check_choices(target, [json_of(payload) for payload in heard.payloads])
    end = f" (finish_reason {target.said(decoded.finish_reason)})" if decoded.finish_reason else ""
    cut = f", and {reply.cut}" if reply.cut else ""
    target.fail(f"{target.url} answers 200 without any text{end}{cut}", "does this model answer to chat requests?")


def _check_choices(target: Target, payloads: list[Any]) -> None:
    """Raise when `choices` is there and holds no answer: empty, or not the list of objects that it must be."""
    told = [value["choices"] for value in payloads if isinstance(value, dict) and "choices" in value]
    if not told or any(_is_choice(item) for choices in told if isinstance(choices, list) for item in choices):
        return
    odd = next((choices for choices in told if choices != []), None)
    what = "empty choices" if odd is None else "malformed choices"
    shown = "[]" if odd is None else target.said(msgspec.json.encode(odd).decode())
    target.fail(
        f"{target.url} answers 200 with {what}: {shown}",
        "the server, or a gateway before it, answers without an answer: its log tells more",
        check="choices",
    )


def _is_choice(item: object) -> bool:
    return isinstance(item, dict) and any(
        isinstance(item.get(name), (dict, str)) for name in ("delta", "message", "text")
    )


def _is_whole_answer(value: dict[str, Any]) -> bool:
    """Of chat and completions, of Anthropic messages, of Responses."""
    choices = value.get("choices")
    has_one = isinstance(choices, list) and any(_is_choice(item) for item in choices)
    return has_one or value.get("type") == "message" or value.get("object") == "response"
