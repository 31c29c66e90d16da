"""Base URLs in every spelling that users have."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infersiege.channels.url import endpoint_url, models_url, root_url
from infersiege.errors import UsageError

CHAT = "/chat/completions"


@pytest.mark.parametrize(
    ("base_url", "url", "why"),
    [
        ("http://h", "http://h/v1/chat/completions", "host only"),
        ("http://h/", "http://h/v1/chat/completions", "host and slash"),
        ("http://h/v1", "http://h/v1/chat/completions", "with version"),
        ("http://h/v1/", "http://h/v1/chat/completions", "with version and slash"),
        ("http://h/v1/chat/completions", "http://h/v1/chat/completions", "full endpoint"),
        ("http://h/v1/chat/completions/", "http://h/v1/chat/completions", "full endpoint and slash"),
        ("https://h/api/v3", "https://h/api/v3/chat/completions", "another version"),
        ("https://h/v1beta/openai/", "https://h/v1beta/openai/chat/completions", "Gemini"),
        ("https://h/api", "https://h/api/v1/chat/completions", "prefix of a gateway"),
        ("https://h/openai/v1", "https://h/openai/v1/chat/completions", "Groq"),
        ("https://h/compatible-mode/v1", "https://h/compatible-mode/v1/chat/completions", "DashScope"),
        ("https://h/api/paas/v4/", "https://h/api/paas/v4/chat/completions", "Zhipu"),
        ("https://h/v2alpha1", "https://h/v2alpha1/chat/completions", "a version in progress"),
        ("https://h/vllm", "https://h/vllm/v1/chat/completions", "a name that starts like a version"),
        ("https://h/v1x", "https://h/v1x/v1/chat/completions", "and one that is none"),
        ("https://h/chat/completions", "https://h/chat/completions", "an endpoint without a version"),
        ("http://h//v1", "http://h/v1/chat/completions", "two slashes"),
        ("http://h//v1//chat//completions", "http://h/v1/chat/completions", "two slashes everywhere"),
        ("  http://h/v1\n", "http://h/v1/chat/completions", "spaces around it"),
        ("HTTP://Host/v1", "http://host/v1/chat/completions", "capitals in scheme and host"),
        ("http://h:8000", "http://h:8000/v1/chat/completions", "with port"),
        ("http://[::1]:8000/v1", "http://[::1]:8000/v1/chat/completions", "IPv6 with port"),
        ("http://[2001:db8::1]", "http://[2001:db8::1]/v1/chat/completions", "IPv6 without"),
        ("http://h/v1/completions", "http://h/v1/chat/completions", "the endpoint of another dialect"),
        ("http://h/v1/messages", "http://h/v1/chat/completions", "the endpoint of another dialect"),
        ("http://h/v1/models", "http://h/v1/chat/completions", "the list of models"),
        (
            "https://h/openai/deployments/d/chat/completions?api-version=2024-10-21",
            "https://h/openai/deployments/d/chat/completions?api-version=2024-10-21",
            "Azure: the query stays",
        ),
        ("http://h/模型/v1", "http://h/%E6%A8%A1%E5%9E%8B/v1/chat/completions", "a path in Chinese"),
        ("http://h/a%20b/v1", "http://h/a%20b/v1/chat/completions", "encoded already"),
        ("http://bücher.example/v1", "http://xn--bcher-kva.example/v1/chat/completions", "a name in German"),
    ],
)
def test_cl_01_base_urls_in_every_spelling(base_url: str, url: str, why: str) -> None:
    assert endpoint_url(base_url, CHAT) == url, why
    assert endpoint_url(url, CHAT) == url, "what is printed can be put into the plan"


@pytest.mark.parametrize(
    ("base_url", "models", "health"),
    [
        ("http://h", "http://h/v1/models", "http://h/health"),
        ("http://h/v1/", "http://h/v1/models", "http://h/health"),
        ("http://h:8000/v1/chat/completions", "http://h:8000/v1/models", "http://h:8000/health"),
        ("https://h/v1beta/openai/", "https://h/v1beta/openai/models", "https://h/health"),
        ("https://h/api/v3", "https://h/api/v3/models", "https://h/api/health"),
        ("https://h/api", "https://h/api/v1/models", "https://h/api/health"),
        ("https://h/chat/completions", "https://h/models", "https://h/health"),
        ("http://[::1]:8000/v1", "http://[::1]:8000/v1/models", "http://[::1]:8000/health"),
        ("https://h/v1?api-version=3", "https://h/v1/models?api-version=3", "https://h/health"),
    ],
)
def test_the_urls_beside_the_endpoint(base_url: str, models: str, health: str) -> None:
    assert (models_url(base_url), root_url(base_url, "/health")) == (models, health)


@pytest.mark.parametrize(
    ("base_url", "seen", "hint"),
    [
        ("", "empty", "http://127.0.0.1:8000/v1"),
        ("   ", "empty", "http://127.0.0.1:8000/v1"),
        ("localhost:8000", "localhost:8000 has no scheme", "http://localhost:8000"),
        ("h/v1", "no scheme", "http://h/v1"),
        ("//h/v1", "no scheme", "http://"),
        ("ftp://h/v1", "ftp://", "use one of these"),
        ("unix:///run/x.sock", "unix://", "use one of these"),
        ("http://", "no host", "http://127.0.0.1:8000/v1"),
        ("http:///v1", "no host", "http://127.0.0.1:8000/v1"),
        ("http://h:port/v1", "port", "brackets"),
        ("http://h:99999", "port", "brackets"),
        ("http://h:0", "port 0", "listens"),
        ("http://::1:8000/v1", "can't be taken apart", "brackets"),
        ("http://[::1/v1", "can't be taken apart", "brackets"),
        ("http://´/v1", "neither a name", "spelling"),
        ("http://h%20x/v1", "neither a name", "spelling"),
        ("http://h/v1#top", "fragment", "remove it"),
        ("http://h/my model/v1", "space", "remove it"),
        ("http://h\\v1", "backslash", "remove it"),
        ("http://h/v1\r\nx-evil: 1", "control character", "remove it"),
        ("http://me:hunter2@h/v1", "user info", "api_key_env"),
        ("http://hunter2@h/v1", "user info", "api_key_env"),
        ("me:hunter2@h/v1", "no scheme", "http://"),
        ("http://h/v1?key=hunter2", "(key=…)", "api_key_env"),
        ("http://h/v1?a=1&API_KEY=hunter2", "(API_KEY=…)", "api_key_env"),
        ("http://h/v1?access_token=hunter2", "(access_token=…)", "api_key_env"),
        ("http://h/v1?code=hunter2", "(code=…)", "api_key_env"),
        ("http://h/v1?x-functions-key=hunter2", "(x-functions-key=…)", "api_key_env"),
        ("http://h/v1?subscription-key=hunter2", "(subscription-key=…)", "api_key_env"),
    ],
)
def test_nonsense_is_refused_with_a_hint_and_without_the_key(base_url: str, seen: str, hint: str) -> None:
    for ask in (
        lambda: endpoint_url(base_url, CHAT),
        lambda: models_url(base_url),
        lambda: root_url(base_url, "/health"),
    ):
        with pytest.raises(UsageError) as caught:
            ask()
        assert seen in str(caught.value)
        assert hint in (caught.value.hint or "")
        assert "hunter2" not in f"{caught.value} {caught.value.hint}"


@given(
    st.text(max_size=30) | st.text(max_size=20).map("http://h".__add__) | st.text(max_size=20).map("http://".__add__)
)
def test_any_text_gives_a_url_or_a_usage_error(base_url: str) -> None:
    try:
        url = endpoint_url(base_url, CHAT)
    except UsageError:
        return
    assert url.isascii()
    assert not any(letter <= " " for letter in url)
    parts = urlsplit(url)
    assert parts.scheme in ("http", "https")
    assert parts.path.endswith(CHAT)
    assert endpoint_url(url, CHAT) == url
