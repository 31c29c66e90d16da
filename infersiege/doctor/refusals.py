"""What a server means that refuses: the key, the quota, the path, the model, a proxy in between, memory."""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import NoReturn

from infersiege.channels.faults import ServerError, class_of_status, server_error
from infersiege.channels.proxy import proxy_refusal
from infersiege.doctor.http import Reply
from infersiege.doctor.models import base_url_that_works
from infersiege.doctor.reach import is_this_host, proxy_failed
from infersiege.doctor.target import Target, is_page, json_of
from infersiege.doctor.tools import ABOUT_TOOLS, HINT
from infersiege.records import ErrorClass

NOT_READY = frozenset({502, 503, 504})
"""Of servers that are starting, and of proxies before them."""

_QUOTA = re.compile(
    r"insufficient[_ ]?(quota|balance|credits?|funds)|exceeded your current quota|out of (credits?|quota)"
    r"|quota.{0,20}exceeded|(credit )?balance is too low|payment required"
    r"|billing[_ ]?(error|hard limit|limit|.{0,20}(not active|inactive|disabled))|arrear|余额|欠费|额度",
    re.IGNORECASE,
)
_RATE = re.compile(r"rate.?limit|too.?many.?requests|throttl", re.IGNORECASE)
_LINK = re.compile(r"https?://\S+", re.IGNORECASE)
"""Of pages where a limit is explained or raised: their paths say `billing` and `quota` whatever the limit is."""
_LONGEST_RATE_WAIT_S = 600
_OF_THE_KEY = re.compile(
    r"api.?key|(invalid|access|bearer|expired|missing|auth\w*) (key|token)|credential|authenticat|unauthori[sz]ed"
    r"|not authori[sz]ed|authori[sz]ation|log.?in|密钥|鉴权",
    re.IGNORECASE,
)
_SAYS_NOTHING = re.compile(r"(forbidden|http|error|access|denied|status|code|403|[\W_])*", re.IGNORECASE)
_OF_THE_PLACE = re.compile(r"(?<![a-z])(countr|region|territor|location|geo)", re.IGNORECASE)
_MEMORY = re.compile(
    r"kv[ _-]?cache|out of (gpu |device |host )?memory|\boom\b|cuda ?malloc|cudaerrormemoryallocation"
    r"|no (more )?(free|available) (kv )?(blocks?|slots?|memory)|memory pool|not enough memory|insufficient memory"
    r"|failed to (find|allocate) .{0,40}(slot|memory|block|buffer)|显存",
    re.IGNORECASE,
)
_MEMORY_HINT = (
    "give it more memory or ask it for less: --gpu-memory-utilization, --max-model-len, --max-num-seqs (vLLM), "
    "--mem-fraction-static (SGLang), -c and --parallel (llama.cpp)"
)
_CONTEXT_HINT = (
    "start the engine with a longer context: --max-model-len (vLLM), --context-length (SGLang), "
    "-c, which all --parallel slots share (llama.cpp)"
)
_GATEWAYS = re.compile(
    r"nginx|envoy|haproxy|squid|caddy|traefik|cloudflare|privoxy|clash|varnish|apache", re.IGNORECASE
)


def refused(target: Target, reply: Reply, what: str, *, tools: bool = False) -> NoReturn:
    """Raise what an HTTP status other than 200 means. `tools`: the request had one, as the plan's workloads do."""
    status = reply.status
    error = server_error(json_of(reply.body))
    said = _said(target, reply, error)
    seen = f"{reply.url} answers {status} to {what}{said}"
    words = reply.body[:65_536].decode("utf-8", "replace") if reply.encoding is None else ""
    if target.proxy is not None and not target.place.encrypted:
        refusal = proxy_refusal(status, reply.headers)
        if refusal is not None:
            failed = proxy_failed(target.proxy, f"it {refusal}; {seen}")
            target.fail(str(failed), failed.hint, check=failed.check, passing=True)
    if status == HTTPStatus.PROXY_AUTHENTICATION_REQUIRED:
        target.fail(f"a proxy in between wants credentials; {seen}", "infersiege connects directly: who intercepts it?")
    if status in (401, 402, 403, 429) and _is_out_of_quota(reply, error, words):
        source = f"the account of the key in {target.key_source}" if target.key else "the account"
        target.fail(
            f"{source} is out of quota; {seen}",
            "the quota is used up: top it up, or use another key; waiting does not help",
            check="key",
        )
    if status == 401 or (status == 403 and _blames_the_key(reply, error, words)):
        _key_refused(target, seen)
    if status == 403:
        _forbidden(target, reply, seen, words)
    if status in (404, 405, 410):
        _not_found(target, reply, seen, error)
    if 300 <= status < 400:
        where = target.said(reply.headers.get("location", "nowhere"))
        target.fail(f"{seen} and points to {where}", "put that address into base_url")
    if status in (402, 429):
        wait = reply.headers.get("retry-after")
        limit = "a rate limit" if _is_rate_limit(reply, error) else "a rate limit or a quota"
        hint = limit + (f"; it says to wait {target.said(wait)} s" if wait else "")
        target.fail(seen, hint, check="key" if status == 402 else None)
    out_of_room(target, seen, words, class_of_status(status, error, words), passing=status in NOT_READY)
    if tools and status in (400, 422, 500, 501) and ABOUT_TOOLS.search(words):
        target.fail(f"the workloads of this channel send tools; {seen}", HINT, check="tools")
    if status >= 500:
        _server_fault(target, reply, seen, words)
    _bad_request(target, seen, said)


def _is_rate_limit(reply: Reply, error: ServerError | None) -> bool:
    """By the code that it names, or by the short wait that it asks for: an empty account asks for none."""
    if error is not None and error.kind is not None and _RATE.search(error.kind):
        return True
    wait = reply.headers.get("retry-after", "").strip()
    return reply.status == 429 and wait.isascii() and wait.isdigit() and int(wait[:9]) <= _LONGEST_RATE_WAIT_S


def _is_out_of_quota(reply: Reply, error: ServerError | None, words: str) -> bool:
    """By the code first: the words of a rate limit often lead to a page about billing."""
    if error is not None and error.kind is not None and _QUOTA.search(error.kind):
        return True
    return not _is_rate_limit(reply, error) and _QUOTA.search(_LINK.sub("", words)) is not None


def _blames_the_key(reply: Reply, error: ServerError | None, words: str) -> bool:
    """Whether a 403 is about the key: it says so, or says nothing at all, as simple gates before engines do."""
    if is_page(reply):
        return False
    told = error.describe() if error is not None else words
    place = _OF_THE_PLACE.search(told)
    return _SAYS_NOTHING.fullmatch(told[:1000]) is not None or (place is None and _OF_THE_KEY.search(told) is not None)


def _forbidden(target: Target, reply: Reply, seen: str, words: str) -> NoReturn:
    """Raise for a 403 that is not about the key."""
    hint = "the server forbids it and does not name the key: the rights of the account, or a rule for this network?"
    if is_page(reply):
        hint = "a firewall, a proxy or a log-in page before the API forbids it, not the API: does it know this host?"
    elif _OF_THE_PLACE.search(words):
        hint = "the service is not offered where this host stands; another key does not help"
    target.fail(seen, hint)


def _said(target: Target, reply: Reply, error: ServerError | None) -> str:
    """`: ` and the server's words, or what keeps us from reading them."""
    if reply.encoding is not None:
        return f" (content-encoding {target.said(reply.encoding)}, not asked for)"
    if error is not None:
        return f": {target.said(error.describe())}"
    if is_page(reply):
        return " (a web page)"
    return f": {target.quote(reply.body)}" if reply.body.strip() else ""


def out_of_room(target: Target, seen: str, words: str, error_class: ErrorClass, *, passing: bool) -> None:
    """Raise when the engine says that its memory or its context are too small."""
    if _MEMORY.search(words):
        target.fail(f"the engine is out of KV or GPU memory; {seen}", _MEMORY_HINT, check="memory", passing=passing)
    if error_class is ErrorClass.CONTEXT_LENGTH:
        target.fail(f"even a small request does not fit the engine's context; {seen}", _CONTEXT_HINT, check="context")


def _server_fault(target: Target, reply: Reply, seen: str, words: str) -> NoReturn:
    """5xx: of a proxy before the engine, or of the engine itself."""
    status = reply.status
    passing = status in NOT_READY
    between = _GATEWAYS.search(reply.headers.get("server", "")) or reply.headers.get("via")
    if status in (502, 504) or "proxy" in words.lower() or (status == 503 and between):
        named = reply.headers.get("server") or reply.headers.get("via")
        who = f" ({target.said(named)})" if named else ""
        said = "local proxy failed" if is_this_host(target.place.host) else "a proxy in between failed"
        target.fail(
            f"{said}: what listens on {target.place} is a proxy{who} that does not reach the engine behind it; {seen}",
            "is the engine behind it up? or write the engine's own address into base_url",
            check="proxy",
            passing=passing,
        )
    target.fail(seen, "is it still loading, or overloaded? its log tells more", passing=passing)


def _bad_request(target: Target, seen: str, said: str) -> NoReturn:
    hint = "the server takes no such request; its message says why"
    if "stream_options" in said:
        hint = "set include_usage = false (token counts are then estimates)"
    elif "max_completion_tokens" in said:
        hint = "this model wants max_completion_tokens in the place of max_tokens; ask it in dialect openai-responses"
    elif target.channel.extra_body or target.channel.ignore_eos:
        hint = "does it know the fields of extra_body and ignore_eos?"
    target.fail(seen, hint)


def _key_refused(target: Target, seen: str) -> NoReturn:
    source = target.key_source
    if target.key:
        target.fail(f"the key in {source} is refused; {seen}", f"is {source} the key of this server?", check="key")
    why = f"; {target.profile.title} was started with a key (--api-key)" if target.is_local_engine else ""
    target.fail(
        f"a request without a key is refused{why}; {seen}",
        f"name the key's variable: api_key_env in [channel.{target.name}]",
        check="key",
    )


def _not_found(target: Target, reply: Reply, seen: str, error: ServerError | None) -> NoReturn:
    model = target.channel.model
    if error is not None and reply.url == target.url and ("model" in error.message.lower() or model in error.message):
        target.fail(
            f"the server has no model {model!r}; {seen}", f"set model in [channel.{target.name}]", check="models"
        )
    path = reply.url.split("://", 1)[-1]
    better = base_url_that_works(target)
    if path.count("/v1") > 1:
        hint = "base_url has /v1 twice; once is enough"
    elif path.count(target.dialect.path) > 1:
        hint = f"base_url has {target.dialect.path} twice; once is enough"
    elif better is not None:
        hint = "base_url leads to the wrong place"
    elif "/v1" in path:
        base = target.channel.base_url
        hint = f"{target.url} was made of base_url {base}; is this an LLM server, and is its API there?"
    else:
        hint = (
            "base_url leads to the wrong place; try it with /v1 at its end, or as the server's documentation gives it"
        )
    if better is not None:
        hint += f'; base_url = "{better}" has a list of models'
    target.fail(seen, hint, check="base URL")
