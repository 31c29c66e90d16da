"""A database's answer: its words without the token, what it means for the points, and what to do about it."""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Mapping
from typing import Any, Final, Literal

from infersiege_agents.influx.target import Target

Asked = Literal["a write", "a query"]
Kind = Literal["influxdb 1", "influxdb 2", "influxdb 3", "victoriametrics", "other"]

LONGEST_WORDS: Final = 300
_LONGEST_BODY: Final = 65_536
_REDACTED: Final = "[redacted]"
_LEAST_PASSWORD: Final = 4
"""A shorter half of `user:password` is not looked for: it would be found in every other word."""

_OF_LINES: Final = re.compile(
    r"partial write|unable to parse|(failed|cannot|can't|error) (to )?(parse|parsing|unmarshal)|parsing failed"
    r"|field type conflict|beyond retention|retention polic|line protocol|invalid field|missing fields"
    r"|(bad|invalid) (timestamp|number|boolean|tag)|time outside range",
    re.IGNORECASE,
)
"""How InfluxDB 1 to 3 and VictoriaMetrics speak of the lines of a write."""


class Verdict(enum.Enum):
    """What an answer means for the lines of the request."""

    TAKEN = "taken"
    BAD_LINES = "bad lines"
    """Some line is wrong: smaller requests tell which."""
    UNCLEAR = "unclear"
    """Refused, and the words speak of no line: a database without its organisation refuses with 400 as well, and a
    proxy with 413. Single lines tell which it is."""
    LATER = "later"
    """The server or the way to it fails: it may be well again by itself."""
    REFUSED = "refused"
    """Somebody has to do something: token, database, address."""


def verdict_of(status: int, words: str) -> Verdict:
    """Of a write. Only 204 says that points were taken: a captive portal or a web server answers 200 to everything."""
    if status == 204:
        return Verdict.TAKEN
    if status in (408, 425, 429) or status >= 500:
        return Verdict.LATER
    if status in (400, 413, 422):
        return Verdict.BAD_LINES if status != 413 and _OF_LINES.search(words) else Verdict.UNCLEAR
    return Verdict.REFUSED


def words_of(body: bytes | str | None, target: Target) -> str:
    """The server's words on one line, without the token: of a JSON body `message` (2.x, 3.x) or `error` (1.x, in a
    result too), else its text."""
    text = body.decode("utf-8", "replace") if isinstance(body, bytes) else str(body or "")
    text = text[:_LONGEST_BODY]
    found = parsed(text)
    results = found.get("results") if isinstance(found, dict) else None
    for place in (found, *(results if isinstance(results, list) else [])):
        said = (place.get("message") or place.get("error")) if isinstance(place, dict) else None
        if isinstance(said, str):
            text = said
            break
    return one_line(redacted(text, target))


def redacted(text: str, target: Target) -> str:
    """Without the token, and without the password of `user:password`. To be called before a text is cut."""
    for secret in (target.token, target.token.partition(":")[2]):
        if secret and (secret == target.token or len(secret) >= _LEAST_PASSWORD):
            text = text.replace(secret, _REDACTED)
    return text


def one_line(text: str) -> str:
    """White space as single spaces; at most LONGEST_WORDS characters."""
    text = " ".join(text.split())
    return text if len(text) <= LONGEST_WORDS else f"{text[: LONGEST_WORDS - 1]}…"


def parsed(body: bytes | str) -> Any:
    """The JSON of a body; None when it is none."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def advice(
    target: Target,
    status: int,
    words: str,
    headers: Mapping[str, str],
    *,
    asked: Asked = "a write",
    kind: Kind | None = None,
) -> str:
    """What to do about an answer that is no success. `words` are of `words_of`, `headers` have lower-case names.

    `kind`: which database it is, where that is known.
    """
    text = words.lower()
    if asked == "a write" and 200 <= status < 300:
        what = headers.get("content-type", "").partition(";")[0].strip() or "nothing"
        return f"it answers with {what}, as no database does: is influx_url the address of a database?"
    if 300 <= status < 400:
        to = headers.get("location", "")
        return f"it points to {to}: put that address into influx_url" if to else "is influx_url its address?"
    if status == 401 or "unauthorized" in text or "authorization failed" in text:
        if not target.token:
            return "it wants a token: export it, and name its variable in influx_token_env (--influx-token-env)"
        return "is the token right? 2.x and 3.x take a token, 1.8 user:password"
    if status == 403:
        return f"the token needs read and write on {target.bucket!r}: influx auth create --read-buckets --write-buckets"
    if re.search(r"\borg(anization|id)?\b", text):
        return "name the organisation in influx_org (--influx-org); `influx org list` shows them"
    if missing := _missing(target, text, asked, kind):
        return missing
    if "retention" in text:
        return "its retention is shorter than the point is old: are both clocks right?"
    if status in (429, 503):
        return "it is overloaded or starting: try again"
    if status in (404, 405):
        return "no /api/v2/write there: is influx_url the address of InfluxDB 1.8, 2.x, 3.x or VictoriaMetrics?"
    return "its log tells more"


def _missing(target: Target, text: str, asked: Asked, kind: Kind | None) -> str | None:
    """The bucket or the database is not there, or (2.x) nothing maps a database to the bucket."""
    bucket, org = target.bucket, f" --org {target.org}" if target.org else ""
    database = f"influx -execute 'CREATE DATABASE {quoted(bucket)}'"
    if "dbrp" in text or (asked == "a query" and "not found" in text and kind is None and "bucket" not in text):
        return (
            f"InfluxDB 2: influx v1 dbrp create --db {bucket} --rp autogen --default{org} --bucket-id "
            f"$(influx bucket list --name {bucket}{org} --hide-headers | cut -f1); InfluxDB 1: {database}"
        )
    if "not found" not in text:
        return None
    if "bucket" in text:
        return f"make it: influx bucket create --name {bucket}{org}"
    return f"make it: {database}" if "database" in text else None


def quoted(identifier: str) -> str:
    """An identifier of InfluxQL."""
    return '"' + identifier.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
