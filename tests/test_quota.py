"""Rate-limit headers, and the verdict that a run reached its account's limit instead of the server's (CL-10)."""

from __future__ import annotations

import metrics_turns as make
import pytest

from infersiege.channels.quota import quota_left
from infersiege.metrics.summary import summarise
from infersiege.records import EarlierAttempt, ErrorClass, TurnRecord


@pytest.mark.parametrize(
    ("headers", "left", "why"),
    [
        ({}, {}, "a server of one's own tells nothing"),
        (
            {"x-ratelimit-remaining-requests": "59", "x-ratelimit-remaining-tokens": "0"},
            {"requests": 59, "tokens": 0},
            "",
        ),
        ({"anthropic-ratelimit-requests-remaining": "7"}, {"requests": 7}, "Anthropic's order of words"),
        ({"anthropic-ratelimit-output-tokens-remaining": " 0 "}, {"output_tokens": 0}, "spaces are no part of it"),
        ({"x-ratelimit-remaining": "5", "ratelimit-remaining": "3"}, {"requests": 3}, "two tell: the least counts"),
        ({"x-ratelimit-remaining-requests": "unlimited"}, {}, "no number"),
        ({"x-ratelimit-remaining-requests": "-1"}, {}, "no number of requests"),
        ({"x-ratelimit-remaining-requests": "٣"}, {}, "a digit, but none of HTTP's"),
        ({"x-ratelimit-remaining-requests": "9" * 400}, {}, "larger than any account"),
        ({"x-ratelimit-limit-requests": "60"}, {}, "the limit itself is not what is left"),
    ],
)
def test_what_is_left(headers: dict[str, str], left: dict[str, int], why: str) -> None:
    assert quota_left(headers) == left, why


def warnings_of(turns: list[TurnRecord]) -> list[str]:
    return [warning for warning in summarise(turns, make.facts()).warnings if "quota-bound" in warning]


REFUSED = [make.failed(100.0 * number, 100.0 * number + 5, ErrorClass.RATE_LIMIT) for number in range(10)]
RETRIED = [
    make.streamed(
        50.0 * number,
        [50.0 * number + 20, 50.0 * number + 40],
        earlier=(EarlierAttempt(channel="local", error_class=ErrorClass.RATE_LIMIT),),
    )
    for number in range(20)
]
EMPTY = [make.streamed(50.0 * number, [50.0 * number + 20], quota_left={"requests": 0}) for number in range(20)]


@pytest.mark.parametrize(
    ("turns", "words", "why"),
    [
        (make.many(90) + REFUSED, "10 of 100 requests were refused by a rate limit", "429s as the turns' own end"),
        (RETRIED, "20 of 40 requests were refused by a rate limit", "each turn ended well, at the second try"),
        (EMPTY, "20 of 20 answers said that nothing is left of it", "nothing was refused yet, and nothing is left"),
    ],
)
def test_cl_10_a_plateau_of_the_account_is_called_that(turns: list[TurnRecord], words: str, why: str) -> None:
    (warning,) = warnings_of(turns)
    assert words in warning, why


@pytest.mark.parametrize(
    ("turns", "why"),
    [
        (make.many(100), "no word of a limit"),
        (make.many(300) + REFUSED[:2], "two refusals prove nothing"),
        (make.many(50, quota_left={"requests": 10}), "something is left"),
        (
            [make.failed(1.0 * n, 5.0 * n, ErrorClass.OVERLOAD) for n in range(20)],
            "an overload is the server's own limit",
        ),
    ],
)
def test_cl_10_other_limits_are_not_the_account(turns: list[TurnRecord], why: str) -> None:
    assert warnings_of(turns) == [], why
