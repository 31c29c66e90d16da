"""The slowest turns with their timeline: where their time went, as bars. No text of a prompt or an answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from infersiege.metrics.definitions import METRICS
from infersiege.report.details import RANKED, Details, SlowTurn
from infersiege.report.markup import absent, table, text
from infersiege.report.numbers import count, number
from infersiege.report.words import Words

PHASES: Sequence[tuple[str, str]] = (
    ("wait", "due → attempt: the load generator was late"),
    ("connect", "attempt → first byte sent: connecting"),
    ("upload", "first → last byte sent: upload"),
    ("server", "last byte sent → first byte of the answer"),
    ("first", "first byte of the answer → first token"),
    ("stream", "first → last token: the answer"),
    ("tail", "last token → closed"),
)
"""(class in the style, words) of the time between two successive instants of `SlowTurn.instants_ns`."""

WIDTH = 240
"""Of a timeline, in px."""


def spans_ms(turn: SlowTurn) -> list[tuple[int, float, float]]:
    """(place in PHASES, from, to) in ms since due, of what is known; a phase whose start is not known begins where the
    one before it ended, and instants never go back."""
    due_ns = turn.instants_ns[0] or 0
    found = []
    before_ns = due_ns
    for place, at_ns in enumerate(turn.instants_ns[1:]):
        if at_ns is None or at_ns <= before_ns:
            continue
        found.append((place, (before_ns - due_ns) / 1e6, (at_ns - due_ns) / 1e6))
        before_ns = at_ns
    return found


def slowest_html(details: Details, start_ns: int, say: Words) -> str:
    """Two tables, by TTFT and by E2E, and what the colours mean."""
    tables = [_table(details.slowest(metric), metric, start_ns, say) for metric in RANKED if details.slowest(metric)]
    if not tables:
        return f'<p class="soft">{text(say("No ok turn of the steady phase."))}</p>'
    keys = "".join(f'<li><i class="key t-{name}"></i>{text(say(words))}</li>' for name, words in PHASES)
    return f'<ul class="keys">{keys}</ul><div class="slow">{"".join(tables)}</div>'


def _table(turns: Sequence[SlowTurn], metric: str, start_ns: int, say: Words) -> str:
    columns = [("x-request-id", "", False), (METRICS[metric].title, "ms", True)]
    columns.append((say("Timeline"), say("from due; all bars on one scale"), False))
    other = "e2e" if metric == "ttft" else "ttft"
    columns += [
        (METRICS[other].title, "ms", True),
        (say("Prompt"), say("tokens"), True),
        (say("Cached"), say("tokens"), True),
    ]
    columns += [
        (say("Output"), say("tokens"), True),
        (say("Due"), say("s since start"), True),
        (say("Session"), "", False),
    ]
    columns.append((say("Where"), say("worker · replica"), False))
    longest_ms = max((end for turn in turns for _, _, end in spans_ms(turn)), default=1.0)
    caption = say("Slowest ok turns of the steady phase by {metric}; find them in the server's log by their id",
                  metric=METRICS[metric].title)  # fmt: skip
    return table(caption, columns, list(_rows(turns, metric, start_ns, longest_ms, say)))


def _rows(
    turns: Sequence[SlowTurn], metric: str, start_ns: int, longest_ms: float, say: Words
) -> Iterator[Sequence[str]]:
    unknown = say("the server does not tell cached tokens")
    for turn in turns:
        other_ns = turn.e2e_ns if metric == "ttft" else turn.ttft_ns
        where = f"{turn.worker} · {turn.channel if turn.replica is None else turn.replica}"
        number_of = say("turn {n}", n=turn.turn + 1)
        yield (
            f"<code>{text(turn.request_id)}</code>",
            number(turn.value_ns / 1e6),
            timeline(turn, longest_ms, say),
            number(None if other_ns is None else other_ns / 1e6),
            count(turn.prompt_tokens),
            absent(unknown, say) if turn.cached_tokens is None else count(turn.cached_tokens),
            count(turn.output_tokens),
            number((turn.instants_ns[0] or 0) / 1e9 - start_ns / 1e9),
            f"{text(turn.scenario)} · <code>{text(turn.session_id)}</code> {text(number_of)}",
            text(where),
        )


def timeline(turn: SlowTurn, longest_ms: float, say: Words) -> str:
    """One turn as a bar of `WIDTH` px for `longest_ms`, and its figures in words for who can't see it."""
    spans = spans_ms(turn)
    said = [f"{say(PHASES[place][1])} {number(end - begin)} ms" for place, begin, end in spans]
    if turn.connect_ns:
        said.insert(1, say("connect and TLS {ms} ms", ms=number(turn.connect_ns / 1e6)))
    scale = WIDTH / longest_ms
    bars = "".join(
        f'<rect class="t-{PHASES[place][0]}" x="{begin * scale:.1f}" y="2" height="12" '
        f'width="{max((end - begin) * scale, 0.6):.1f}"/>'
        for place, begin, end in spans
    )
    label = text("; ".join(said))
    return (
        f'<svg class="timeline" role="img" aria-label="{label}" width="{WIDTH}" height="16" '
        f'viewBox="0 0 {WIDTH} 16"><title>{label}</title>{bars}</svg>'
    )
