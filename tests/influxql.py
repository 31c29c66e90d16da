"""Which measurements, tags and fields a query names, to hold dashboards against `infersiege_agents.measurements`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from infersiege_agents.measurements import Measurement

Json = dict[str, Any]
QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')
ALIAS = re.compile(r'\bAS "([^"]+)"')
FROM = re.compile(r'\bFROM "([^"]+)"')
INNER = re.compile(r"\bFROM \((SELECT .+)\)(?= WHERE )")
REGEX = re.compile(r"=~ /(?:[^/\\]|\\.)+/")
TEXT = re.compile(r"""("[^"]*")|'[^']*'""")
"""A text, or a quoted name, in which an apostrophe is just one."""
BARE = re.compile(r"[A-Za-z_][A-Za-z_0-9]*")

KEYWORDS = "SELECT FROM WHERE AND OR AS GROUP BY fill none null now SHOW TAG VALUES WITH KEY DISTINCT"
FUNCTIONS = "time last mean max min sum count"
DURATIONS = "ms s d h m"
WORDS = frozenset(f"{KEYWORDS} {FUNCTIONS} {DURATIONS}".lower().split())
"""Keywords and functions of the portable subset; anything else that is not quoted is a mistake."""


def faults(query: str, measurements: Mapping[str, Measurement]) -> list[str]:
    """What the query names that nobody writes, or that is not quoted. `query` is not expanded yet."""
    return _faults(TEXT.sub(r"\1", REGEX.sub("", query)), measurements)


def _faults(text: str, measurements: Mapping[str, Measurement]) -> list[str]:
    inner = INNER.search(text)
    sources = FROM.findall(text)
    found = [] if inner is None else _faults(inner[1], measurements)
    found += [f"measurement {name!r}" for name in sources if name not in measurements and inner is None]
    # What the outer query of two can name is what the inner one calls its columns, and tags.
    known = set() if inner is None else set(ALIAS.findall(inner[1]))
    for name in sources:
        if name in measurements:
            known |= set(measurements[name].tags) if inner else {one.name for one in measurements[name].columns}
    here = text if inner is None else text.replace(inner[0], "")
    here = FROM.sub("", ALIAS.sub("", here))
    found += [f"column {name!r} of {', '.join(sources)}" for name in QUOTED.findall(here) if name not in known]
    bare = BARE.findall(re.sub(r"\$\{?\w+(?::\w+)?\}?", "", QUOTED.sub("", here)))
    return found + [f"{word!r} without quotes" for word in bare if word.lower() not in WORDS]


def queries(dashboard: Json) -> Iterator[tuple[str, str]]:
    """(place, query) of every variable, annotation and panel."""
    for variable in dashboard["templating"]["list"]:
        yield f"variable {variable['name']}", variable["query"]
    for annotation in dashboard["annotations"]["list"]:
        yield f"annotation {annotation['name']}", annotation["query"]
    for panel in dashboard["panels"]:
        for one in targets(panel):
            yield f"panel {panel['title']} {one['refId']}", one["query"]


def targets(panel: Mapping[str, Any]) -> Sequence[Json]:
    found: Sequence[Json] = panel.get("targets", [])
    return found
