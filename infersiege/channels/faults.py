"""What servers say when they refuse: error bodies of every shape, and the class each belongs to. Pure.

Used for HTTP error bodies and for errors inside a stream alike, since engines put the same object in both places.
"""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

from infersiege.channels.leniency import lenient_json
from infersiege.records import ErrorClass


class ServerError(msgspec.Struct, frozen=True, kw_only=True):
    """One error object, whatever its shape was."""

    message: str
    """Empty where the server gave none (vLLM does so for some cancelled requests)."""
    kind: str | None = None
    """`type`, or a `code` that is a word: `NotFoundError`, `context_length_exceeded`."""
    status: int | None = None
    """The HTTP status that it names, which is not the status it came with."""

    def describe(self) -> str:
        """One text of all that it says."""
        named = ", ".join(str(part) for part in (self.kind, self.status) if part is not None)
        if self.message and named:
            return f"{self.message} ({named})"
        return self.message or named or "an error without a message"


CONTEXT_WORDING = re.compile(
    r"""context[ _-]?(length|size|window)           # vLLM, SGLang, llama.cpp, OpenAI, LMDeploy
    |max_model_len|max_seq_len|max_num_tokens       # vLLM (max_tokens too large), TensorRT-LLM
    |max(imum)?[ ](input|sequence|prompt)[ ]length
    |(prompt|input|request)\b.{0,40}\btoo[ ]long    # Anthropic, gateways
    |must[ ]have[ ]less[ ]than[ ]\d+[ ]tokens       # TGI
    |max_new_tokens`?[ ]must[ ]be[ ]<=              # TGI
    |input_length_error|range[ ]of[ ]input[ ]length # LMDeploy, DashScope
    |上下文长度|输入.{0,12}超长|超长.{0,6}输入
    """,
    re.IGNORECASE | re.VERBOSE,
)
"""A prompt that does not fit, in the words of each engine. Looked at only where the status is a client error."""

OVERLOAD_WORDING = re.compile(
    r"overloaded|currently busy|server is busy|queue is full|no available (slot|worker|instance)|at capacity",
    re.IGNORECASE,
)

KINDS: dict[str, ErrorClass] = {
    "exceedcontextsizeerror": ErrorClass.CONTEXT_LENGTH,  # llama.cpp
    "contextlengthexceeded": ErrorClass.CONTEXT_LENGTH,  # OpenAI
    "inputlengtherror": ErrorClass.CONTEXT_LENGTH,  # LMDeploy
    "contentfilter": ErrorClass.CONTENT_FILTER,  # Azure
    "contentpolicyviolation": ErrorClass.CONTENT_FILTER,  # OpenAI
    "responsibleaipolicyviolation": ErrorClass.CONTENT_FILTER,  # Azure, inner code
    "datainspectionfailed": ErrorClass.CONTENT_FILTER,  # DashScope
    "overloaded": ErrorClass.OVERLOAD,  # TGI
    "overloadederror": ErrorClass.OVERLOAD,  # Anthropic
    "serviceunavailable": ErrorClass.OVERLOAD,  # vLLM, SGLang
    "serviceunavailableerror": ErrorClass.OVERLOAD,
    "unavailableerror": ErrorClass.OVERLOAD,  # llama.cpp
    "ratelimiterror": ErrorClass.RATE_LIMIT,
    "ratelimitexceeded": ErrorClass.RATE_LIMIT,
    "toomanyrequests": ErrorClass.RATE_LIMIT,
    "insufficientquota": ErrorClass.RATE_LIMIT,  # OpenAI
    "authenticationerror": ErrorClass.AUTH,
    "permissionerror": ErrorClass.AUTH,
    "billingerror": ErrorClass.AUTH,  # Anthropic: its 402
    "permissiondeniederror": ErrorClass.AUTH,
    "invalidapikey": ErrorClass.AUTH,
    "unauthorized": ErrorClass.AUTH,
    "forbidden": ErrorClass.AUTH,
}
"""Words of `type` or `code` that say more than any status does; compared without case and punctuation."""

VAGUE_KINDS: dict[str, ErrorClass] = {
    "notfounderror": ErrorClass.NOT_FOUND,
    "notfound": ErrorClass.NOT_FOUND,
    "modelnotfound": ErrorClass.NOT_FOUND,
    "badrequesterror": ErrorClass.BAD_REQUEST,
    "badrequest": ErrorClass.BAD_REQUEST,
    "invalidrequesterror": ErrorClass.BAD_REQUEST,
    "requesttoolarge": ErrorClass.BAD_REQUEST,  # Anthropic: its 413, counted in bytes
    "validation": ErrorClass.BAD_REQUEST,  # TGI: also for prompts that are too long, so the wording comes first
}

STATUSES: dict[int, ErrorClass] = {
    400: ErrorClass.BAD_REQUEST,
    401: ErrorClass.AUTH,
    402: ErrorClass.AUTH,  # "insufficient balance": the account is refused
    403: ErrorClass.AUTH,
    404: ErrorClass.NOT_FOUND,
    405: ErrorClass.NOT_FOUND,  # a path that takes no POST is the wrong path: the remedy is the same
    407: ErrorClass.AUTH,
    408: ErrorClass.RATE_LIMIT,
    410: ErrorClass.NOT_FOUND,
    413: ErrorClass.BAD_REQUEST,
    422: ErrorClass.BAD_REQUEST,
    424: ErrorClass.SERVER,  # TGI: generation failed
    429: ErrorClass.RATE_LIMIT,
    499: ErrorClass.SERVER,  # LMDeploy, nginx: they say that we hung up, and we did not
    503: ErrorClass.OVERLOAD,
    529: ErrorClass.OVERLOAD,  # Anthropic
}

_TOO_LARGE = frozenset({None, 400, 413, 422})


def server_error(value: object) -> ServerError | None:
    """Read a decoded JSON value as an error; None: it is not one.

    Shapes: `{"error": {...}}`, `{"error": "text"}`, flat `{"object": "error", "message": ...}`,
    `{"type": "error", ...}`, `{"detail": ...}` (FastAPI), `{"code": "Word", "message": ...}` without an answer in it.
    """
    if not isinstance(value, dict):
        return None
    inner = value.get("error")
    if isinstance(inner, dict) and inner:
        return _from_object(inner)
    if inner and inner is not True:
        return _from_object({"message": _text(inner), "type": value.get("error_type"), "code": value.get("code")})
    if inner is True or value.get("object") == "error" or value.get("type") == "error":
        return _from_object(value)
    if value.get("choices"):
        return None
    if value.get("detail"):
        return _from_object({"message": _text(value["detail"]), "code": value.get("code")})
    if isinstance(value.get("message"), str) and (value.get("code") or value.get("error_type")):
        return _from_object(value)
    return None


def _from_object(fields: dict[str, Any]) -> ServerError:
    code = fields.get("code")
    status = next(
        (
            number
            for name in ("code", "http_status_code", "status_code", "status")
            if (number := _status(fields.get(name)))
        ),
        None,
    )
    word = code if isinstance(code, str) and _status(code) is None else None
    kind = fields.get("type") or fields.get("error_type")
    if not isinstance(kind, str) or kind == "error" or _status(kind) is not None:
        kind = None
    # Of two words, the one that we know: OpenAI's code says more than its type, vLLM's type more than its code.
    best = next((name for name in (word, kind) if name is not None and _key(name) in KINDS), kind or word)
    return ServerError(message=_text(fields.get("message")), kind=best, status=status)


def _status(value: object) -> int | None:
    if isinstance(value, str) and len(value) == 3 and value.isascii() and value.isdigit():
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and 300 <= value <= 599:
        return value
    return None


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, list):  # FastAPI's list of faults
        return "; ".join(_written(item.get("msg", item) if isinstance(item, dict) else item) for item in value[:5])
    if isinstance(value, dict) and isinstance(value.get("message"), str):
        return str(value["message"])
    return _written(value)


def _written(value: object) -> str:
    try:
        return str(value)
    except RecursionError:
        return "[nested beyond reason]"


def _key(word: str) -> str:
    return "".join(letter for letter in word.lower() if letter.isalnum())


def class_of_stream_error(error: ServerError) -> ErrorClass:
    """The class of an error inside a stream: what it names, `stream_error` where it names nothing better.

    A status of 500 and the like stays `stream_error`: the engine had begun to answer and died over it.
    """
    known = KINDS.get(_key(error.kind or ""))
    if known is not None:
        return known
    if error.status in _TOO_LARGE and CONTEXT_WORDING.search(error.message):
        return ErrorClass.CONTEXT_LENGTH
    if OVERLOAD_WORDING.search(error.message):
        return ErrorClass.OVERLOAD
    if error.status is not None:
        named = STATUSES.get(error.status, ErrorClass.STREAM_ERROR)
        return ErrorClass.STREAM_ERROR if named is ErrorClass.SERVER else named
    return VAGUE_KINDS.get(_key(error.kind or ""), ErrorClass.STREAM_ERROR)


def class_of_status(status: int, error: ServerError | None, text: str) -> ErrorClass:
    """The class of an answer whose HTTP status is no success. `text`: the body, or the start of it."""
    known = KINDS.get(_key(error.kind or "")) if error is not None else None
    if status in _TOO_LARGE:
        if known in (ErrorClass.CONTEXT_LENGTH, ErrorClass.CONTENT_FILTER, ErrorClass.OVERLOAD):
            return known
        return ErrorClass.CONTEXT_LENGTH if CONTEXT_WORDING.search(text) else ErrorClass.BAD_REQUEST
    if known is ErrorClass.OVERLOAD or (known is ErrorClass.RATE_LIMIT and status < 500):
        return known
    if known is ErrorClass.CONTENT_FILTER and status < 500:
        return known
    if status in STATUSES:
        return STATUSES[status]
    if status >= 500:
        return ErrorClass.OVERLOAD if OVERLOAD_WORDING.search(text) else ErrorClass.SERVER
    return ErrorClass.BAD_REQUEST


def text_of(body: bytes) -> str:
    """The start of a body; no error object is longer."""
    return body[:65536].decode("utf-8", "replace")


def json_of(text: str) -> Any:
    """The JSON value of a body, or of the first event of a stream that was not sent as one; None: there is none."""
    if (start := re.search(r"^data:\s*", text, re.MULTILINE)) is not None:
        text = text[start.end() :].split("\n", 1)[0]
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def gist(text: str) -> str:
    """What a body that is no error object says: the title of a page, else its words."""
    title = re.search(r"<title[^>]*>(.*?)</title>", text, re.IGNORECASE | re.DOTALL)
    return title[1].strip() if title is not None else re.sub(r"<[^>]*>", " ", text[:2000]).strip()


def whole_object(body: bytes, field: str) -> dict[str, Any]:
    """The JSON object of a non-streamed answer: it has the list `field` that makes it one, or it is an error object.

    Raises ValueError on what is neither.
    """
    value = lenient_json(body)
    if not isinstance(value, dict):
        raise ValueError(f"expected a JSON object, got {type(value).__name__}")
    if not isinstance(value.get(field), list) and server_error(value) is None:
        raise ValueError(f"neither `{field}` nor an error in the answer")
    return value
