"""Where keys of a TOML file stand, and how single values are written."""

from __future__ import annotations

import random
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infersiege.plan.locate import KeyPath, positions, split_key
from infersiege.plan.values import format_duration, parse_duration, parse_limit


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("5m", 300_000_000_000),
        ("800ms", 800_000_000),
        ("1h30m", 5_400_000_000_000),
        ("1.5s", 1_500_000_000),
        ("1h 30m", 5_400_000_000_000),
        ("0s", 0),
        ("250us", 250_000),
        ("250µs", 250_000),
    ],
)
def test_durations(text: str, expected: int) -> None:
    assert parse_duration(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "5",
        "5 m 3",
        "m",
        "5x",
        "-5s",
        "30s5m",
        "5m5m",
        "1e3s",
        "0.1ns",
        "٥m",
        "900000h",
        "5M",
        "nan",
        "inf",
        "9" * 10**6 + "s",
    ],
)
def test_no_durations(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_duration(text)


@given(st.integers(min_value=0, max_value=366 * 24 * 3_600_000_000_000))
def test_durations_written_and_read(duration_ns: int) -> None:
    assert parse_duration(format_duration(duration_ns)) == duration_ns


@given(st.text(max_size=12))
def test_any_text_is_a_duration_or_a_value_error(text: str) -> None:
    try:
        assert parse_duration(text) >= 0
    except ValueError as error:
        assert str(error)


@pytest.mark.parametrize(
    ("value", "unit", "expected"),
    [
        ("800ms", "ms", 800.0),
        ("1.5s", "ms", 1500.0),
        ("250us", "ms", 0.25),
        ("1%", "ratio", 0.01),
        ("0.1 %", "ratio", 0.001),
        (1, "ratio", 1.0),
        (200, "tokens/s", 200.0),
        ("200 tokens/s", "tokens/s", 200.0),
    ],
)
def test_limits(value: object, unit: str, expected: float) -> None:
    assert parse_limit(value, unit) == pytest.approx(expected)


def test_lines_of_every_kind_of_key() -> None:
    text = '''\
# [comment]
top = 1
[a.b]
x = "]#="
"y z".w = 2
deep = { p = 1, q = { r = [1, 2] } }
[[list]]
items = [
  "one", # ]
  { k = 1 },
]
text = """
[not.a.table]
k = "\\""""""
[list.sub]
v = 1
[[list]]
[list.sub]
v = 2
'''
    lines = {path: place.line for path, place in positions(text).items()}
    assert lines == {
        ("top",): 2,
        ("a",): 3,
        ("a", "b"): 3,
        ("a", "b", "x"): 4,
        ("a", "b", "y z"): 5,
        ("a", "b", "y z", "w"): 5,
        ("a", "b", "deep"): 6,
        ("a", "b", "deep", "p"): 6,
        ("a", "b", "deep", "q"): 6,
        ("a", "b", "deep", "q", "r"): 6,
        ("a", "b", "deep", "q", "r", 0): 6,
        ("a", "b", "deep", "q", "r", 1): 6,
        ("list",): 7,
        ("list", 0): 7,
        ("list", 0, "items"): 8,
        ("list", 0, "items", 0): 9,
        ("list", 0, "items", 1): 10,
        ("list", 0, "items", 1, "k"): 10,
        ("list", 0, "text"): 12,
        ("list", 0, "sub"): 15,
        ("list", 0, "sub", "v"): 16,
        ("list", 1): 17,
        ("list", 1, "sub"): 18,
        ("list", 1, "sub", "v"): 19,
    }


SCALARS = [
    "1",
    "1.5e3",
    "true",
    "2024-01-01 10:00:00",
    '"a]b}c#d=e,"',
    "'it'",
    '"""m\n[x]\ny = 1 \\""" """',
    "'''q\n''k'''",
    '"\\\\"',
    "''",
    '""',
    "[]",
    "{}",
]


class Writer:
    """Writes a random TOML document; every key has a name of its own, so that its line can be found again."""

    def __init__(self, source: random.Random) -> None:
        self.random = source
        self.count = 0

    def key(self) -> str:
        self.count += 1
        return f"k{self.count}x"

    def shown(self, key: str) -> str:
        return self.random.choice([key, f'"{key}"', f"'{key}'"])

    def scalar(self) -> str:
        return self.random.choice(SCALARS)

    def inline(self, depth: int) -> str:
        kind = self.random.randrange(3 if depth else 1)
        if kind == 0:
            return self.scalar()
        size = self.random.randrange(4)
        if kind == 1:
            pairs = [f"{self.shown(self.key())} = {self.inline(depth - 1)}" for _ in range(size)]
            return "{" + ", ".join(pairs) + "}"
        gap = self.random.choice(["", "\n ", " # ],}\n"])
        return "[" + "".join(f"{gap}{self.inline(depth - 1)}{gap}," for _ in range(size)) + gap + "]"

    def pairs(self) -> str:
        lines = []
        for _ in range(self.random.randrange(4)):
            key = self.shown(self.key())
            if self.random.random() < 0.3:
                key += self.random.choice([".", " . "]) + self.shown(self.key())
            lines.append(
                f"{self.random.choice(['', '  '])}{key} = {self.inline(2)} {self.random.choice(['', '# [c]'])}\n"
            )
        return "".join(lines)

    def document(self) -> str:
        parts = [self.pairs()]
        for _ in range(self.random.randrange(4)):
            name = ".".join(self.shown(self.key()) for _ in range(self.random.randint(1, 2)))
            if self.random.random() < 0.5:
                parts += [f"[{name}]\n", self.pairs()]
                continue
            for _ in range(self.random.randint(1, 3)):
                parts += [f"[[ {name} ]]\n", self.pairs()]
                if self.random.random() < 0.5:
                    parts += [f"[{name}.{self.key()}]\n", self.pairs()]
        return "".join(parts)


def paths_of(value: object, path: KeyPath = ()) -> set[KeyPath]:
    found = {path} if path else set()
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        found |= paths_of(item, (*path, key))
    return found


@given(st.integers(min_value=0, max_value=2**32))
def test_every_key_of_any_document_is_found_at_its_line(seed: int) -> None:
    text = Writer(random.Random(seed)).document()
    found = positions(text)
    assert set(found) == paths_of(tomllib.loads(text))
    lines = text.split("\n")
    for path, place in found.items():
        if isinstance(path[-1], str):
            assert path[-1] in lines[place.line - 1][place.column - 1 :], (path, place)
            assert not any(path[-1] in line for line in lines[: place.line - 1]), "its first line"


PIECES = [
    "a",
    '"c"',
    "'d'",
    "=",
    "[",
    "]",
    "[[",
    "]]",
    "{",
    "}",
    '"""',
    "'''",
    '"',
    "'",
    "\\",
    ",",
    "\n",
    "#",
    " ",
    "1",
    ".",
    "x = 1\n",
    "a.b = 2\n",
    "[t]\n",
    "[[u]]\n",
    '""',
    "= [",
    "\r\n",
]


def test_odd_documents_that_tomllib_takes_are_walked_whole() -> None:
    source = random.Random(1)
    valid = 0
    for _ in range(20_000):
        text = "".join(source.choices(PIECES, k=source.randrange(1, 12)))
        try:
            value = tomllib.loads(text)
        except tomllib.TOMLDecodeError:
            continue
        valid += 1
        assert set(positions(text)) == paths_of(value), text
    assert valid > 500


@pytest.mark.parametrize(
    ("text", "parts"), [("a.b", ("a", "b")), ('a."b.c".0', ("a", "b.c", "0")), (" a . b ", ("a", "b"))]
)
def test_split_key(text: str, parts: tuple[str, ...]) -> None:
    assert split_key(text) == parts


@given(st.text(max_size=20))
def test_any_text_is_a_key_or_refused(text: str) -> None:
    try:
        parts = split_key(text)
    except tomllib.TOMLDecodeError:
        return
    assert parts
