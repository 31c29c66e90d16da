"""How long synthesised text is in an engine's tokens: real tokenizers, the emulator's endpoints, scripted servers."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import engines
import msgspec
import pytest
from doctor_server import ByBody, Server, response
from siege import Siege, check_conserved, plan_text
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from infersiege.channels import PROFILES
from infersiege.doctor.target import Target
from infersiege.emulator.process import EmulatorProcess
from infersiege.errors import PlanError, TargetError
from infersiege.plan.load import load_plan
from infersiege.plan.schema import Channel, Plan
from infersiege.plan.trace import trace_of
from infersiege.records import BlockText, Session, TextLengths, Turn
from infersiege.rundir import ChannelFacts
from infersiege.tokens import TextMeasures, measured
from infersiege.tokens.endpoint import EndpointCounter
from infersiege.tokens.local import LocalTokenizer
from infersiege.tokens.probe import CountError, Probe
from infersiege.traces import Conversation, Synthesizer, prompt_salt
from infersiege.traces.synthesis.material import Material, key_of
from infersiege.traces.synthesis.words import WORDS

LANGUAGES = ("en", "zh")
SLOW_ZH = ("en", pytest.param("zh", marks=pytest.mark.slow))
SALT = prompt_salt("test", "main", 0)


ASCII = "\n" + "".join(map(chr, range(32, 127)))


def trained(kind: str, folder: Path) -> Path:
    """A small tokenizer.json of one of the usual kinds, trained on a text of our own words; cut at 64 tokens."""
    tokenizer = Tokenizer(models.BPE(unk_token=None, byte_fallback=kind == "sentencepiece"))
    alphabet: list[str] = []
    if kind == "sentencepiece":
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
        tokenizer.decoder = decoders.Metaspace()
        alphabet = sorted(
            {letter for words in WORDS.values() for word in words for letter in word} | set(ASCII + "，。")
        )
    else:
        if kind == "split":  # GPT-4's way: a mark takes the line ends after it, a word the one character before it
            pattern = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+"
            from tokenizers import Regex

            split = pre_tokenizers.Split(Regex(pattern), "isolated")
            tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
                [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
            )
        else:
            tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=1100, special_tokens=["<s>"], initial_alphabet=alphabet, show_progress=False, max_token_length=12
    )
    # Half of the English words and the characters of all Chinese ones, so that some take one token and some several.
    texts = [*(f" {word}" for word in WORDS["en"][::2]), *"".join(WORDS["zh"])]
    tokenizer.train_from_iterator(texts * 3, trainer)
    tokenizer.enable_truncation(64)
    path = folder / f"{kind}.json"
    tokenizer.save(str(path))
    return path


SLOW_KINDS = [pytest.param(kind, marks=pytest.mark.slow) for kind in ("bytelevel", "sentencepiece")]


@pytest.fixture(scope="module", params=["split", *SLOW_KINDS])
def tokenizer_json(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(request.param, tmp_path_factory.mktemp("tokenizer"))


def whole(path: Path) -> Tokenizer:
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.no_truncation()
    return tokenizer


def errors_of(lengths: TextLengths, language: str, count: Callable[[str], int], seed: int = 1) -> list[float]:
    """|told - asked| / asked of texts of 20 to 2,000 tokens, from the smallest on."""
    synthesizer = Synthesizer(seed, lengths={language: lengths})
    found = []
    for number in range(200):
        asked = 20 + number * 10
        block = BlockText(scope="e", ids=(number,), tokens=(asked,), language=language)
        found.append(abs(count(synthesizer.text(block)) + lengths.separator_tokens - asked) / asked)
    return found


@pytest.mark.parametrize("language", LANGUAGES)
def test_tk_10_prompt_length_is_what_was_asked_with_a_tokenizer(tokenizer_json: Path, language: str) -> None:
    """Error at most 2 % (p95), over three ways in which tokenizers treat spaces, marks and bytes."""
    probe = Probe(Material(key_of(1), language))
    lengths = probe.lengths(LocalTokenizer(tokenizer_json).begun(probe.text, probe.offsets), "tokenizer")
    tokenizer = whole(tokenizer_json)
    errors = errors_of(lengths, language, lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids))
    assert sorted(errors)[189] <= 0.02
    assert max(errors[20:]) <= 0.02


def test_counts_are_those_of_the_library(tokenizer_json: Path) -> None:
    text = "The river, and 42 bridges. 我们的桥梁。\n"
    encoded = whole(tokenizer_json).encode(text, add_special_tokens=False)
    begun = LocalTokenizer(tokenizer_json).begun(text, range(len(text) + 1))
    assert begun[-1] == len(encoded.ids) and begun == sorted(begun)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "can't be read: No such file"),
        (b"{}", "is no tokenizer.json"),
        (b"\xff\xfe", "is not UTF-8"),
        (b"not json", "is no tokenizer.json"),
    ],
)
def test_files_that_are_no_tokenizer(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "tokenizer.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(CountError, match=message):
        LocalTokenizer(path)


# ----------------------------------------------------------------------------------------------------------- endpoints


def target(port: int, engine: str) -> Target:
    channel = Channel(engine=engine, base_url=f"http://127.0.0.1:{port}/v1", model="m")
    return Target("t", channel, None)


def emulated_tokens(text: str) -> int:
    """As docs/emulator.md says: five ASCII characters, two others below U+2E80, or one from there on."""
    return len(re.findall(r"[\x00-\x7f]{1,5}|[\x80-\u2e7f]{1,2}|[^\x00-\u2e7f]", text))


@pytest.mark.parametrize("language", SLOW_ZH)
@pytest.mark.parametrize(
    "engine", ["vllm", *(pytest.param(name, marks=pytest.mark.slow) for name in ("llama.cpp", "sglang"))]
)
def test_endpoints_of_the_emulator(engine: str, language: str) -> None:
    with EmulatorProcess("--profile", engine, "--model", "m") as emulator:
        endpoint = PROFILES[engine].tokenizer
        assert endpoint is not None
        counter = EndpointCounter(target(emulator.port, engine), endpoint)
        probe = Probe(Material(key_of(1), language))
        lengths = probe.lengths(counter.begun(probe.text, probe.offsets), "endpoint")
        assert counter.requests < 40
    errors = errors_of(lengths, language, emulated_tokens)
    assert sorted(errors)[189] <= 0.02


class Words:
    """A server's tokenize endpoint over a real tokenizer.json: each engine's form, and a longest text."""

    def __init__(self, path: Path, most_chars: int = 10**9) -> None:
        self.tokenizer = whole(path)
        self.most_chars = most_chars
        self.sizes: list[int] = []

    def encoded(self, text: str) -> Any:
        self.sizes.append(len(text))
        return self.tokenizer.encode(text, add_special_tokens=False)

    def lmdeploy(self, body: dict[str, Any]) -> bytes:
        texts = body["input"]
        assert isinstance(texts, list) and body["add_bos"] is False
        encoded = [self.encoded(text).ids for text in texts]
        return response(json.dumps({"input_ids": encoded, "length": list(map(len, encoded))}))

    def tgi(self, body: dict[str, Any]) -> bytes:
        """With a special token in front, which has no length."""
        text = body["inputs"]
        if len(text) > self.most_chars:
            return response('{"error":"too long","error_type":"validation"}', "422 Unprocessable Entity")
        encoded = self.encoded(text)
        told = [{"id": 0, "text": "<s>", "start": 0, "stop": 0}]
        told += [
            {"id": ident, "text": text[start:stop], "start": start, "stop": stop}
            for ident, (start, stop) in zip(encoded.ids, encoded.offsets, strict=True)
        ]
        return response(json.dumps(told))

    def vllm(self, body: dict[str, Any]) -> bytes:
        encoded = self.encoded(body["prompt"])
        assert body["model"] == "m" and body["add_special_tokens"] is False
        return response(json.dumps({"count": len(encoded.ids), "tokens": encoded.ids, "token_strs": encoded.tokens}))


@contextmanager
def serving(path: str, answer: Callable[[dict[str, Any]], bytes]) -> Iterator[Server]:
    server = Server({f"POST {path}": ByBody(answer)})
    try:
        yield server
    finally:
        server.listener.close()


@pytest.mark.parametrize("language", SLOW_ZH)
@pytest.mark.parametrize("engine", ["lmdeploy", "tgi", "vllm"])
def test_each_engine_s_form_says_what_the_tokenizer_says(tokenizer_json: Path, engine: str, language: str) -> None:
    words = Words(tokenizer_json, most_chars=5_000)
    endpoint = PROFILES[engine].tokenizer
    assert endpoint is not None
    probe = Probe(Material(key_of(1), language))
    with serving(endpoint.path, getattr(words, engine)) as server:
        counter = EndpointCounter(target(server.port, engine), endpoint)
        lengths = probe.lengths(counter.begun(probe.text, probe.offsets), "endpoint")
    errors = errors_of(lengths, language, lambda text: len(words.tokenizer.encode(text, add_special_tokens=False).ids))
    assert sorted(errors)[189] <= 0.02
    assert counter.requests < 150
    if engine == "tgi":
        assert max(words.sizes) <= 5_000, "a text that was refused came again in smaller pieces"


@pytest.mark.parametrize(
    ("engine", "answer", "message"),
    [
        ("llama.cpp", response("{}", "404 Not Found"), "answers 404"),
        ("llama.cpp", response('{"tokens":[1,2]}'), "its tokens have no pieces"),
        ("llama.cpp", response('{"tokens":[{"id":1,"piece":"x"}]}'), "its tokens are not the text"),
        ("llama.cpp", response("<html>"), "answers without JSON"),
        ("llama.cpp", response("{}", "400 Bad Request"), "answers 400"),
        ("vllm", response('{"count":3,"tokens":[1,2,3]}'), "does not tell its tokens"),
        ("sglang", response('{"count":3,"tokens":[1,2,3]}'), "no list of counts"),
        ("tgi", response('[{"id":1}]'), "does not tell where its tokens are"),
        ("tgi", response('[{"id":1,"start":0,"stop":3}]'), "end elsewhere than the text"),
    ],
)
def test_endpoints_that_are_none(engine: str, answer: bytes, message: str) -> None:
    endpoint = PROFILES[engine].tokenizer
    assert endpoint is not None
    probe = Probe(Material(key_of(1), "en"))
    with serving(endpoint.path, lambda body: answer) as server:
        counter = EndpointCounter(target(server.port, engine), endpoint)
        with pytest.raises(CountError, match=message):
            counter.begun(probe.text, probe.offsets)


# ------------------------------------------------------------------------------------------------------------ the ways


class Model:
    """A chat server that counts its prompts by a real tokenizer and a template, and may have a tokenize endpoint."""

    def __init__(self, path: Path, *, request: int = 12, message: int = 5, usage: bool = True) -> None:
        self.tokenizer = whole(path)
        self.request, self.message, self.usage = request, message, usage
        self.prompts: list[list[dict[str, str]]] = []

    def count(self, messages: list[dict[str, str]]) -> int:
        texts = sum(len(self.tokenizer.encode(one["content"], add_special_tokens=False).ids) for one in messages)
        return texts + self.request + self.message * (len(messages) - 1)

    def chat(self, body: dict[str, Any]) -> bytes:
        self.prompts.append(body["messages"])
        assert body["max_tokens"] == 1
        events = [{"model": "m", "choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": "length"}]}]
        if self.usage:
            tokens = self.count(body["messages"])
            events.append({"choices": [], "usage": {"prompt_tokens": tokens, "completion_tokens": 1}})
        text = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
        return response(text, kind="text/event-stream")


def plan_of(port: int, folder: Path, *, channel: str = "", language: str = "en", engine: str = "generic") -> Plan:
    path = folder / "plan.toml"
    path.write_text(
        f"""
[run]
duration = "3s"
seed = 1
[channel.t]
engine = "{engine}"
base_url = "http://127.0.0.1:{port}/v1"
model = "m"
{channel}
[[workload]]
scenario = "qa"
trace = "builtin:short-qa"
language = "{language}"
[load]
mode = "closed"
users = 1
""",
        encoding="utf-8",
    )
    return load_plan(path)


def measure(plan: Plan, *, skipped: bool = False) -> TextMeasures:
    channel = plan.channels["t"]
    facts = ChannelFacts(
        url=channel.base_url or "",
        engine=channel.engine,
        dialect=channel.dialect or "",
        model=channel.model,
        details={"doctor": "skipped: nothing was asked before the run"} if skipped else {},
    )
    traces = [trace_of(plan, workload) for workload in plan.workloads]
    return measured(plan, traces, {"t": facts}, {}, salt=SALT)


def request_errors(model: Model, lengths: TextLengths, language: str, least: int = 150) -> list[float]:
    """Of whole requests, one message each, with the salt."""
    synthesizer = Synthesizer(1, lengths={language: lengths})
    found = []
    for asked in range(least, 2_150, 20):
        text = BlockText(scope="r", ids=(asked,), tokens=(asked,), language=language)
        turn = Turn(messages=({"role": "user", "content": ""},), texts=(text,), asked_prompt_tokens=asked)
        prepared = Conversation(Session(session_id="s", turns=(turn,)), synthesizer=synthesizer, salt=SALT).next_turn()
        assert prepared is not None
        found.append(abs(model.count(prepared.messages) - asked) / asked)
    return sorted(found)


@pytest.fixture(scope="module")
def bytelevel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained("bytelevel", tmp_path_factory.mktemp("tokenizer"))


@pytest.mark.parametrize("language", LANGUAGES)
def test_calibrated_lengths_are_within_5_percent(bytelevel: Path, tmp_path: Path, language: str) -> None:
    model = Model(bytelevel)
    with serving("/v1/chat/completions", model.chat) as server:
        found = measure(plan_of(server.port, tmp_path, language=language))
    lengths = found.lengths["t"][language]
    assert (lengths.method, lengths.request_tokens, lengths.message_tokens) == ("calibrated", 12, 5)
    assert sum(map(model.count, model.prompts)) < 5_000 and len(model.prompts) <= 12
    errors = request_errors(model, lengths, language)
    assert errors[int(len(errors) * 0.95)] <= 0.05
    assert found.written["qa"].method == "calibrated" and found.written["qa"].least_tokens > 12
    (line,) = found.lines
    asked = f"asked {len(model.prompts)} small prompts, {sum(map(model.count, model.prompts)):,} tokens"
    assert line.startswith("t: prompt lengths by the server's counts") and line.endswith(asked)


@pytest.mark.parametrize("language", SLOW_ZH)
def test_a_local_tokenizer_with_the_server_s_template(bytelevel: Path, tmp_path: Path, language: str) -> None:
    model = Model(bytelevel)
    with serving("/v1/chat/completions", model.chat) as server:
        found = measure(plan_of(server.port, tmp_path, channel=f'tokenizer = "{bytelevel}"', language=language))
    lengths = found.lengths["t"][language]
    assert lengths.method == "tokenizer" and len(model.prompts) == 3
    assert (lengths.request_tokens, lengths.message_tokens) == (12, 5)
    errors = request_errors(model, lengths, language)
    assert errors[int(len(errors) * 0.95)] <= 0.02


def test_lengths_are_the_same_after_a_way_through_json(bytelevel: Path, tmp_path: Path) -> None:
    """As plan.json and every worker get them."""
    plan = plan_of(1, tmp_path, channel=f'tokenizer = "{bytelevel}"')
    lengths = measure(plan, skipped=True).lengths["t"]["en"]
    for pack in (msgspec.json, msgspec.msgpack):
        again = pack.decode(pack.encode(lengths), type=TextLengths)
        assert again == lengths
        texts = {Synthesizer(1, lengths={"en": one}).block("s", 3, 300) for one in (lengths, again)}
        assert len(texts) == 1


def test_a_server_without_usage_leaves_the_usual_ratio(bytelevel: Path, tmp_path: Path) -> None:
    model = Model(bytelevel, usage=False)
    with serving("/v1/chat/completions", model.chat) as server:
        found = measure(plan_of(server.port, tmp_path))
    assert found.lengths["t"]["en"].method == "ratio"
    assert "do not go by calibrated: " in found.lines[0] and "does not tell how many tokens" in found.lines[0]
    assert "by the usual ratio" in found.lines[1]


def test_an_endpoint_that_is_not_there_leaves_calibration(bytelevel: Path, tmp_path: Path) -> None:
    model = Model(bytelevel)
    with serving("/v1/chat/completions", model.chat) as server:
        found = measure(plan_of(server.port, tmp_path, engine="llama.cpp"))
    assert found.lengths["t"]["en"].method == "calibrated"
    assert found.lines[0].startswith("t: prompt lengths do not go by endpoint: ")


@pytest.mark.parametrize(
    ("channel", "engine", "message"),
    [
        ('text_lengths = "endpoint"', "llama.cpp", "can't go by endpoint: .* answers 404"),
        ('text_lengths = "calibrated"', "generic", "can't go by calibrated: .* does not tell"),
    ],
)
def test_a_named_way_that_can_t_be_gone_stops_the_run(
    bytelevel: Path, tmp_path: Path, channel: str, engine: str, message: str
) -> None:
    model = Model(bytelevel, usage=False)
    with (
        serving("/v1/chat/completions", model.chat) as server,
        pytest.raises(TargetError, match=message) as raised,
    ):
        measure(plan_of(server.port, tmp_path, channel=channel, engine=engine))
    assert raised.value.hint


def test_nothing_is_asked_after_skip_doctor_and_for_the_ratio(bytelevel: Path, tmp_path: Path) -> None:
    model = Model(bytelevel)
    with serving("/v1/chat/completions", model.chat) as server:
        skipped = measure(plan_of(server.port, tmp_path), skipped=True)
        named = measure(plan_of(server.port, tmp_path, channel='text_lengths = "ratio"'))
        counted = measure(plan_of(server.port, tmp_path, channel=f'tokenizer = "{bytelevel}"'), skipped=True)
        assert server.requests == []
    assert skipped.lengths["t"]["en"].method == named.lengths["t"]["en"].method == "ratio"
    assert counted.lengths["t"]["en"].method == "tokenizer" and counted.lengths["t"]["en"].request_tokens == 0


@pytest.mark.parametrize(("block", "told"), [(8, True), (64, False)])
def test_blocks_without_room_for_a_text_s_first_words_are_told(
    bytelevel: Path, tmp_path: Path, block: int, told: bool
) -> None:
    """Seven words, of which this tokenizer makes two tokens or so each."""
    trace = tmp_path / "rows.jsonl"
    row = {"timestamp": 0, "input_length": 4 * block, "output_length": 1, "hash_ids": [1, 2, 3, 4]}
    trace.write_text(json.dumps(row) + "\n", encoding="utf-8")
    plan = plan_of(1, tmp_path, channel=f'tokenizer = "{bytelevel}"')
    workload = msgspec.structs.replace(
        plan.workloads[0], trace=str(trace), format="mooncake", options={"block_size": block}
    )
    found = measure(msgspec.structs.replace(plan, workloads=(workload,)), skipped=True)
    lines = [line for line in found.lines if "first words" in line]
    assert bool(lines) == told, found.lines
    if told:
        said = re.fullmatch(
            r"qa: blocks of 8 tokens are shorter than a text's first words \(about (\d+)\): prompts will be longer "
            r"than asked; length_scale = ([\d.]+) gives them room",
            lines[0],
        )
        assert said and float(said[2]) == pytest.approx(int(said[1]) / 8, abs=0.1)


def test_recorded_messages_ask_nothing(tmp_path: Path) -> None:
    trace = tmp_path / "talk.jsonl"
    trace.write_text(json.dumps({"messages": [{"role": "user", "content": "Hi."}]}) + "\n", encoding="utf-8")
    plan = plan_of(1, tmp_path)
    workload = msgspec.structs.replace(plan.workloads[0], trace=str(trace))
    found = measure(msgspec.structs.replace(plan, workloads=(workload,)))
    assert found.lengths == {} and found.written == {} and found.lines == ()


@pytest.mark.parametrize(
    ("channel", "engine", "message"),
    [
        ('tokenizer = "nowhere.json"', "vllm", "no file nowhere.json"),
        ('text_lengths = "tokenizer"', "vllm", "needs tokenizer"),
        ('text_lengths = "endpoint"', "openai", "no tokenize endpoint of OpenAI is known"),
        ('tokenizer = "plan.toml"\ntext_lengths = "ratio"', "vllm", "not used with text_lengths = 'ratio'"),
    ],
)
def test_plans_that_name_a_way_which_is_not_there(tmp_path: Path, channel: str, engine: str, message: str) -> None:
    with pytest.raises(PlanError) as raised:
        plan_of(1, tmp_path, channel=channel, engine=engine)
    assert any(message in fault for fault in raised.value.faults), raised.value.faults


def test_a_tokenizer_is_found_beside_the_plan_and_its_folder_is_not_hashed(bytelevel: Path, tmp_path: Path) -> None:
    from infersiege.plan.load import plan_hash

    hashes = set()
    for name in ("a", "b"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "tokenizer.json").write_bytes(bytelevel.read_bytes())
        plan = plan_of(1, folder, channel='tokenizer = "tokenizer.json"')
        assert plan.channels["t"].tokenizer == str(folder / "tokenizer.json")
        hashes.add(plan_hash(plan))
    assert len(hashes) == 1


def test_begun_counts_add_up(bytelevel: Path) -> None:
    """The words' tokens of the probe, put together, are those of the pool."""
    material = Material(key_of(2), "en")
    probe = Probe(material)
    begun = LocalTokenizer(bytelevel).begun(probe.text, probe.offsets)
    pool = begun[1 + 4 * len(material.head.items) :]
    whole_pool = whole(bytelevel).encode(" " + material.text, add_special_tokens=False)
    assert pool[-1] - pool[0] == len(whole_pool.ids)
    assert len(pool) == len(material.starts) + 1


# -------------------------------------------------------------------------------------------------------- real engines


def llama_count(engine: engines.Engine, messages: list[dict[str, Any]]) -> int:
    """As the engine itself makes a prompt of messages, without reading it."""
    prompt = posted(engine, "/apply-template", {"messages": messages})["prompt"]
    return len(posted(engine, "/tokenize", {"content": prompt, "add_special": True, "parse_special": True})["tokens"])


def posted(engine: engines.Engine, path: str, body: dict[str, Any]) -> Any:
    connection = http.client.HTTPConnection(engine.host, engine.port, timeout=120)
    try:
        connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
        answer = connection.getresponse()
        assert answer.status == http.HTTPStatus.OK, answer.read()
        return json.loads(answer.read())
    finally:
        connection.close()


@pytest.mark.llamacpp
@pytest.mark.slow
@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize(("way", "most"), [("endpoint", 0.02), ("calibrated", 0.05)])
def test_azure_rows_on_llama_cpp(
    llamacpp: engines.Engine, shared: Path, tmp_path: Path, way: str, most: float, language: str
) -> None:
    """The first 30 rows of Azure's conversations, scaled to the context: p95 of the error by the engine's own count."""
    plan = plan_of(llamacpp.port, tmp_path, channel=f'text_lengths = "{way}"', language=language, engine="llama.cpp")
    workload = msgspec.structs.replace(
        plan.workloads[0],
        trace=str(shared / "traces" / "azure" / "AzureLLMInferenceTrace_conv.csv"),
        limit=30,
        length_scale=0.49,
    )
    plan = msgspec.structs.replace(plan, workloads=(workload,))
    found = measure(plan)
    lengths, written = found.lengths["t"][language], found.written["qa"]
    assert lengths.method == way
    synthesizer, trace = Synthesizer(1, lengths={language: lengths}), trace_of(plan, workload)
    errors, short = [], 0
    for index in range(30):
        turn = Conversation(trace.session(index), synthesizer=synthesizer, salt=SALT).next_turn()
        assert turn is not None and turn.asked_prompt_tokens is not None
        if turn.asked_prompt_tokens < written.least_tokens:
            short += 1
            continue
        errors.append(abs(llama_count(llamacpp, turn.messages) / turn.asked_prompt_tokens - 1))
    assert short <= 5, "rows of 45 to 60 tokens, which template, salt and head alone take"
    assert sorted(errors)[int(len(errors) * 0.95)] <= most


@pytest.mark.llamacpp
@pytest.mark.slow
def test_tk_10_a_run_says_how_near_its_prompts_came(llamacpp: engines.Engine, siege: Siege) -> None:
    trace = siege.folder / "rows.csv"
    rows = "\n".join(f"2023-11-16 18:15:{46 + n}.0,{10 if n == 3 else 120 + 15 * n},2" for n in range(10))
    trace.write_text(f"TIMESTAMP,ContextTokens,GeneratedTokens\n{rows}\n", encoding="utf-8")
    text = plan_text(
        llamacpp.base_url,
        model=llamacpp.model,
        engine="llama.cpp",
        run="stop = {sessions = 10}",
        workload=f'scenario = "azure"\ntrace = "{trace}"',
        load='mode = "closed"\nusers = 2\nramp = "0s"',
    )
    ran = siege.run(text, "--workers", "2")
    check_conserved(ran)
    lengths = ran.summary.groups[0].prompt_lengths
    assert lengths is not None and lengths.method == "endpoint"
    assert (lengths.n, lengths.too_short) == (9, 1), "ten tokens are fewer than the template takes"
    assert lengths.error_p95 is not None and lengths.error_p95 <= 0.02
    by_asked = {turn.asked_prompt_tokens: turn.prompt_tokens for turn in ran.turns}
    assert all(told is not None and abs(told - asked) <= 2 for asked, told in by_asked.items() if asked and asked > 10)
    assert "target: prompt lengths by the engine's tokenizer (http://127.0.0.1:" in ran.out
    assert "prompt lengths by endpoint: " in ran.out and "1 turns ask for fewer prompt tokens" in ran.out
    assert ran.plan.text_lengths["target"]["en"].method == "endpoint"
