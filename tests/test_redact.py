"""Secrets never get out, and what is none stays readable."""

from __future__ import annotations

import base64
import json
import os
import random
import re
import string
from pathlib import Path
from urllib.parse import quote, quote_plus, urlencode

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from infersiege.errors import UsageError
from infersiege.plan.schema import Channel, Plan
from infersiege.redact import REDACTED, Secrets, api_key, looks_secret, scrub

SHOWN = [
    # text, what must be gone, why
    ("Invalid key sk-test-123", "test-123", "an error that repeats the key"),
    ("sk-proj-AbC_d-9.", "AbC_d-9", "keys have dashes and underscores"),
    ("Authorization: Bearer abc.def-123", "abc.def-123", "a header"),
    ("authorization: Basic dXNlcjpwYXNz", "dXNlcjpwYXNz", "another scheme"),
    ("Proxy-Authorization: Basic dXNlcjpwYXNz", "dXNlcjpwYXNz", "the proxy's"),
    ('{"Authorization": "Bearer abcdef123"}', "abcdef123", "headers as JSON"),
    ("{'x-api-key': 'hunter2'}", "hunter2", "headers as Python prints them"),
    ("(b'authorization', b'Bearer zzz999xyz')", "zzz999xyz", "headers as raw tuples"),
    ('{\\"api_key\\": \\"hunter2\\"}', "hunter2", "JSON inside JSON"),
    ("got bearer ABCDEFGHIJ", "ABCDEFGHIJ", "no header name in front"),
    ("x-api-key=hunter2&a=b", "hunter2", "a form"),
    ("https://user:pa55@h/v1", "pa55", "user info"),
    ("https://tok3n@h:8000/v1", "tok3n", "user info without a password"),
    ("https://u:p@ss/w@h/v1", "p@ss", "a slash in the password ends the host; what stands before is gone"),
    ("http://h/v1?api_key=hunter2&x=1", "hunter2", "a query key"),
    ("http://h/v1?x=1&key=hunter2", "hunter2", "the second one"),
    ("http://h/v1?access_token=hunter2#f", "hunter2", "before a fragment"),
    ("http://h/v1?X=1;token=hunter2", "hunter2", "with a semicolon"),
    ("hf_abcdefghijklmnopqrst", "abcdefghijkl", "a hub token"),
    ("eyJhbGciOiJI.eyJzdWIiOiIx.abc-123", "eyJzdWIiOiIx", "a JSON web token"),
    ("Cookie: session=hunter2", "hunter2", "a session"),
]


@pytest.mark.parametrize(("text", "secret"), [row[:2] for row in SHOWN], ids=[row[2] for row in SHOWN])
def test_what_looks_like_a_secret_goes(text: str, secret: str) -> None:
    assert secret not in scrub(text)
    assert REDACTED in scrub(text)
    assert looks_secret(text)


@pytest.mark.parametrize(
    "text",
    [
        "plain text",
        "risk-averse desk-clerk task-12345678",
        "http://127.0.0.1:8000/v1/chat/completions",
        "http://h/v1?monkey=1&keyboard=2&tokens=3",
        "max_tokens: 256, prompt_tokens=12",
        "the authorization failed",
        "name its variable in api_key_env instead",
        "channel.local.api_key_env: the environment variable KEY is not set",
        "bearer of bad news",
        "a key: value table",
        "mail me at a@b.example",
        "sk-8",
    ],
)
def test_plain_text_stays(text: str) -> None:
    assert scrub(text) == text


@given(st.text(max_size=200))
def test_scrubbing_twice_changes_nothing_more(text: str) -> None:
    assert scrub(scrub(text)) == scrub(text)


KEYS = st.text(
    alphabet=string.ascii_letters + string.digits + "-_./+=~!@#$%&*'\"\\ :é漢", min_size=8, max_size=60
).filter(lambda key: key.strip() == key and key not in REDACTED)
AROUND = st.text(max_size=30)


@given(KEYS, AROUND, AROUND)
def test_cl_08_a_known_secret_never_survives_in_any_form(key: str, before: str, after: str) -> None:
    secrets = Secrets([key])
    raw = key.encode()
    assume(key not in before + after)
    forms = {
        "raw": key,
        "url": quote(key, safe=""),
        "path": quote(key),
        "form": quote_plus(key),
        "query": urlencode({"q": key}).removeprefix("q="),
        "json": json.dumps(key)[1:-1],
        "json, unescaped": json.dumps(key, ensure_ascii=False)[1:-1],
        "json in json": json.dumps(json.dumps(key))[3:-3],
        "repr": repr(key)[1:-1],
        "hex": raw.hex(),
        "HEX": raw.hex().upper(),
        "lower-case url": quote(key, safe="").lower() if "%" in quote(key, safe="") and key.lower() == key else key,
    }
    for name, form in forms.items():
        assert form not in secrets.scrub(f"{before} {form} {after}"), name
        assert form not in secrets.scrub(form), name


@given(KEYS, st.binary(max_size=20), st.binary(max_size=20))
def test_cl_08_a_known_secret_does_not_survive_inside_base64(key: str, before: bytes, after: bytes) -> None:
    """Basic authorization is base64 of `user:key`: the key begins at any of three places in a group."""
    secrets = Secrets([key])
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        text = encode(before + key.encode() + after).decode()
        assert text not in secrets.scrub(f"echo {text} end")
        decoded = base64.b64decode(text.translate(str.maketrans("-_", "+/")))
        assert key.encode() in decoded, "the test itself"
        left = secrets.scrub(text).replace(REDACTED, "")
        assert left.strip("=") == "", "the whole word goes, or a part could be decoded"


@given(st.lists(KEYS, min_size=1, max_size=4), AROUND)
def test_several_secrets_even_one_inside_another(keys: list[str], around: str) -> None:
    keys.append(keys[0] + "-more")
    text = Secrets(keys).scrub(around + " ".join(keys))
    assert not any(key in text for key in keys if key not in around)


def test_what_holds_no_secret_costs_no_compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns end on the hub: ten long cookies took 39 ms of it, whenever a server named its model otherwise."""
    compiled: list[str] = []
    compile_as_ever = re.compile
    monkeypatch.setattr(re, "compile", lambda *args: compiled.append(args[0]) or compile_as_ever(*args))
    cookies = ["".join(random.Random(seed).choices(string.ascii_letters, k=4000)) for seed in range(10)]
    said = "some-model-2026-01-01 " * 300
    assert Secrets(cookies).scrub(said) == said
    assert not compiled
    assert Secrets(cookies).scrub(f"{said}{cookies[3]}") == f"{said}{REDACTED}"
    assert len(compiled) == 1, "only what finds the one that is there"


def test_short_secrets_go_as_whole_words_only() -> None:
    secrets = Secrets(["test", " ", ""])
    assert secrets.scrub("key test, testing, 'test'") == f"key {REDACTED}, testing, '{REDACTED}'"


def test_no_secret_no_change() -> None:
    assert Secrets().scrub("anything") == "anything"
    assert Secrets([""]).scrub("any thing") == "any thing"


def test_a_repr_shows_no_value() -> None:
    assert "hunter" not in repr(Secrets(["hunter2hunter2"]))


def channel(**more: object) -> Channel:
    return Channel(engine="vllm", model="m", **more)  # type: ignore[arg-type]


def test_secrets_of_a_plan_come_from_variables_and_files(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("file-secret-1\n")
    plan = Plan(
        channels={
            "a": channel(api_key_env="A"),
            "b": channel(api_key_file=str(tmp_path / "key")),
            "c": channel(api_key_file=str(tmp_path / "none")),
            "e": channel(api_key_file="~no-such-user-here/key"),
            "d": channel(),
        },
        workloads=(),
    )
    found = Secrets.of(plan, {"A": "env-secret-1", "INFERSIEGE_SECRET": "shared-secret-1"})
    assert found.scrub("env-secret-1 file-secret-1 shared-secret-1") == f"{REDACTED} {REDACTED} {REDACTED}"
    assert found.also(["cookie-1"]).scrub("env-secret-1 cookie-1") == f"{REDACTED} {REDACTED}"
    assert found.scrub("cookie-1") == "cookie-1"


def test_a_password_of_the_environment_that_is_no_utf8_is_taken_out_too() -> None:
    secrets = Secrets([os.fsdecode(b"hunter\xff-hunter")])
    for written in ("hunter\udcff-hunter", "hunter%FF-hunter", base64.b64encode(b"u:hunter\xff-hunter").decode()):
        assert secrets.scrub(f"no {written} here") == f"no {REDACTED} here", written


def test_api_key(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("\n abc \n")
    assert api_key(channel(), {}) is None
    assert api_key(channel(api_key_env="A"), {}) is None
    assert api_key(channel(api_key_env="A"), {"A": " "}) is None
    assert api_key(channel(api_key_env="A"), {"A": " x\n"}) == "x", "a line end from `export A=$(cat file)`"
    assert api_key(channel(api_key_file=str(tmp_path / "key")), {}) == "abc"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the key file is empty"),
        (b"two words", "holds more than a key"),
        (b"KEY=abc\nOTHER=def\n", "holds more than a key"),
        ("schlüssel".encode(), "holds more than a key"),
        (b"\xff\xfe", "it is not UTF-8 text"),
        (None, "No such file"),
    ],
)
def test_key_files_that_hold_no_key(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "key"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=message) as caught:
        api_key(channel(api_key_file=str(path)), {})
    assert "abc" not in str(caught.value)
