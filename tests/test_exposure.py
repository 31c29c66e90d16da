"""What other hosts may reach: a master's port needs a secret that can't be guessed, a status page a login."""

from __future__ import annotations

import time

import pytest
from siege import Siege, check_passed, plan_text

from infersiege.emulator.process import EmulatorProcess
from infersiege.errors import UsageError
from infersiege.swarm.exposure import LOGIN_VARIABLE, check_secret, is_public, login_of

STRONG = "4f6a1c09d3b2e587"

PUBLIC = [
    ("127.0.0.1", False, "this host"),
    ("127.1.2.3", False, "as well"),
    ("::1", False, "in IPv6"),
    ("localhost", False, "by name"),
    ("0.0.0.0", True, "all interfaces"),
    ("::", True, "in IPv6"),
    ("*", True, "as ZeroMQ writes it"),
    ("192.0.2.1", True, "another address"),
    ("10.0.0.5", True, "a private network has other hosts too"),
    ("no-such-host.invalid", True, "nothing says that it is this host"),
]


@pytest.mark.parametrize(("host", "public", "reason"), PUBLIC, ids=[row[0] for row in PUBLIC])
def test_what_other_hosts_reach(host: str, public: bool, reason: str) -> None:
    assert is_public(host) is public, reason


SECRETS = [
    ("0.0.0.0", "s3cret", False, "short"),
    ("0.0.0.0", "infersiege", False, "a word"),
    ("0.0.0.0", "a" * 64, False, "long, and one letter"),
    ("0.0.0.0", "abab" * 10, False, "two letters"),
    ("0.0.0.0", STRONG, True, "16 characters at random"),
    ("0.0.0.0", "", True, "none: a random one is made"),
    ("127.0.0.1", "s3cret", True, "nobody else reaches it"),
]


@pytest.mark.parametrize(("host", "secret", "fine", "reason"), SECRETS, ids=[f"{r[0]} {r[3]}" for r in SECRETS])
def test_a_secret_that_can_be_guessed_is_none(host: str, secret: str, fine: bool, reason: str) -> None:
    if fine:
        check_secret(host, 5557, secret)
        return
    with pytest.raises(UsageError, match=r"^--bind 0\.0\.0\.0:5557: .* INFERSIEGE_SECRET can be guessed") as told:
        check_secret(host, 5557, secret)
    assert secret not in f"{told.value} {told.value.hint}" and "openssl rand" in (told.value.hint or "")


LOGINS = [
    ("127.0.0.1", None, "nobody asks on this host"),
    ("127.0.0.1", "x:y", "unless it is wanted"),
    ("0.0.0.0", f"me:{STRONG}", "user and password"),
    ("0.0.0.0", STRONG, "a token"),
]


@pytest.mark.parametrize(("host", "value", "reason"), LOGINS, ids=[row[2] for row in LOGINS])
def test_who_may_watch(host: str, value: str | None, reason: str) -> None:
    login = login_of(host, 8089, {} if value is None else {LOGIN_VARIABLE: value})
    assert (login is None) is (value is None)
    assert login is None or not login.admits(None)


@pytest.mark.parametrize("value", [None, "", "me:1234", "aaaaaaaaaaaaaaaaaaaa"])
def test_a_public_page_needs_a_login(value: str | None) -> None:
    with pytest.raises(UsageError, match=r"^--web 0\.0\.0\.0:8089: other hosts can reach this address") as told:
        login_of("0.0.0.0", 8089, {} if value is None else {LOGIN_VARIABLE: value})
    assert "listen on 127.0.0.1" in (told.value.hint or "")
    assert not value or value not in f"{told.value} {told.value.hint}"


def test_a_comparison_tells_nothing_by_its_time() -> None:
    """A megabyte that is wrong at its first or at its last byte costs the same: digests are compared, not texts."""
    value = "me:" + "x" * 1_000_000
    login = login_of("127.0.0.1", 1, {LOGIN_VARIABLE: f"{value}{STRONG}"})
    assert login is not None

    def best(text: str) -> float:
        import base64

        header = "Basic " + base64.b64encode(text.encode()).decode()
        times = []
        for _ in range(7):
            begun = time.perf_counter()
            assert not login.admits(header)
            times.append(time.perf_counter() - begun)
        return min(times)

    early, late = best(f"me:y{value[4:]}{STRONG}"), best(f"{value}{STRONG[:-1]}!")
    assert 0.5 < early / late < 2


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (("--web", "0.0.0.0:0"), "error: --web 0.0.0.0:0: other hosts can reach this address"),
        (("--bind", "0.0.0.0:0"), "error: --bind 0.0.0.0:0: other hosts can reach this address"),
    ],
    ids=["page", "port"],
)
def test_a_run_that_would_be_open_does_not_begin(siege: Siege, options: tuple[str, ...], error: str) -> None:
    siege.environment["INFERSIEGE_SECRET"] = "s3cret"
    siege.environment.pop(LOGIN_VARIABLE, None)
    plan, out = siege.folder / "plan.toml", siege.folder / "run"
    plan.write_text(plan_text("http://127.0.0.1:9/v1"), encoding="utf-8")
    code, said = siege.command("run", str(plan), "--out", str(out), *options)
    assert code == 2 and said.startswith(error), said
    assert len(said.splitlines()) == 2 and not out.exists() and "s3cret" not in said


@pytest.mark.slow
@pytest.mark.alone
def test_a_run_behind_a_login_has_it_in_no_output(siege: Siege) -> None:
    siege.environment |= {LOGIN_VARIABLE: f"me:{STRONG}", "INFERSIEGE_SECRET": STRONG[::-1]}
    with EmulatorProcess("--output-tokens", "10") as emulator:
        text = plan_text(emulator.base_url, load='mode = "closed"\nusers = 2\nramp = "0s"', run='duration = "2s"')
        ran = siege.run(text, "--web", "0.0.0.0:0", "--bind", "0.0.0.0:0")
    check_passed(ran)
    left = [path for path in ran.path.rglob("*") if path.is_file()]
    for text in (ran.out, *(path.read_text(encoding="utf-8", errors="replace") for path in left)):
        assert STRONG not in text and STRONG[::-1] not in text
