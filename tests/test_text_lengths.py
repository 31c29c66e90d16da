"""Synthesised text: the same everywhere, different for different ids, and as long in tokens as was asked for."""

from __future__ import annotations

import time
import tracemalloc

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infersiege.errors import InternalError
from infersiege.records import BlockText, Session, TextLengths, Turn
from infersiege.traces import Conversation, Synthesizer
from infersiege.traces.synthesis.material import DECKS, HEADS, PIECE_UNITS, POOL_UNITS, Material, key_of
from infersiege.traces.synthesis.text import USUAL_LENGTHS, Framing, costs_of, marks_of

SYNTHESIZER = Synthesizer(1)
LANGUAGES = ("en", "zh")


def test_text_is_the_same_for_the_same_seed_scope_and_id():
    assert Synthesizer(1).block("a", 1, 50) == Synthesizer(1).block("a", 1, 50)
    others = [
        Synthesizer(2).block("a", 1, 50),
        Synthesizer(1).block("b", 1, 50),
        Synthesizer(1).block("a", 2, 50),
        Synthesizer(1).block("a", 1, 50, "zh"),
    ]
    assert len({Synthesizer(1).block("a", 1, 50), *others}) == 5


@pytest.mark.parametrize("language", LANGUAGES)
def test_different_ids_differ_within_their_heads(language):
    synthesizer = Synthesizer(7, cache_bytes=0)
    heads = [synthesizer.block("s", ident, 1, language) for ident in range(20_000)]
    assert len(set(heads)) == len(heads)
    alphabet = HEADS[language]
    assert alphabet.parts * alphabet.bits == 56 and len(set(alphabet.items)) == 2**alphabet.bits
    firsts = {head.split()[0] if language == "en" else head[0] for head in heads}
    assert len(firsts) == len(alphabet.items), "every item begins a head, so few texts share even their first token"


@settings(deadline=None)
@given(
    ident=st.integers(-(2**62), 2**62),
    few=st.integers(1, 3000),
    more=st.integers(0, 60_000),
    language=st.sampled_from(LANGUAGES),
)
def test_fewer_tokens_of_an_id_are_a_prefix_of_more(ident, few, more, language):
    """A block that one row fills in part and another in full is still shared as far as it goes."""
    longer = SYNTHESIZER.block("s", ident, few + more, language)
    assert longer.startswith(SYNTHESIZER.block("s", ident, few, language))


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("ratio", [0.5, 1.6, 5.4, 8.0])
def test_length_follows_a_ratio_to_the_word(language, ratio):
    lengths = TextLengths(method="ratio", chars_per_token=ratio)
    synthesizer = Synthesizer(1, lengths={language: lengths})
    head = synthesizer.block("s", 3, 1, language)
    for tokens in (200, 4096, 80_000):
        text = synthesizer.block("s", 3, tokens, language)
        assert text.startswith(head)
        # The longest word has ten letters; the space or comma after the last one counts and is not there.
        assert abs(len(text) - tokens * ratio) <= 8


def counted(language: str, per_word: int) -> Synthesizer:
    """As if a tokenizer had found so many tokens in each word, and one in each part of a head."""
    heads = [1] * len(HEADS[language].items)
    marks = marks_of(heads, heads, [per_word] * POOL_UNITS)
    return Synthesizer(5, lengths={language: TextLengths(method="tokenizer", chars_per_token=5.0, marks=marks)})


COUNTED = {(language, per_word): counted(language, per_word) for language in LANGUAGES for per_word in (1, 2, 3)}


@settings(deadline=None)
@given(ident=st.integers(0, 2**60), tokens=st.integers(40, 70_000), which=st.sampled_from(sorted(COUNTED)))
def test_length_follows_counted_words(ident, tokens, which):
    """Words and heads are counted again in the text itself: nothing is missed or doubled."""
    language, per_word = which
    synthesizer = COUNTED[which]
    text = synthesizer.block("s", ident, tokens, language)
    assert abs(
        synthesizer.tokens(BlockText(scope="s", ids=(ident,), tokens=(tokens,), language=language)) - tokens
    ) <= (per_word / 2)
    if language == "en":
        words = text.split(" ")
        assert abs(7 + (len(words) - 7) * per_word - tokens) <= per_word / 2


def test_marks_of_another_material_are_refused():
    lengths = TextLengths(method="tokenizer", chars_per_token=5.0, marks=marks_of([1], [1], [1] * 10))
    with pytest.raises(InternalError, match="12 token counts"):
        Synthesizer(1, lengths={"en": lengths}).block("s", 1, 100)


def test_zero_tokens_are_no_text_and_ids_are_joined():
    block = BlockText(scope="s", ids=(1, 2, 3), tokens=(5, 0, 9))
    assert SYNTHESIZER.text(block) == SYNTHESIZER.block("s", 1, 5) + "\n" + SYNTHESIZER.block("s", 3, 9)
    assert SYNTHESIZER.text(BlockText(scope="s", ids=(1,), tokens=(0,))) == ""


def test_ratio_must_be_above_zero():
    with pytest.raises(InternalError, match="chars per token"):
        Synthesizer(1, lengths={"en": TextLengths(method="ratio", chars_per_token=0.0)})


def test_cache_is_bounded_and_changes_nothing():
    small, none = Synthesizer(1, cache_bytes=20_000), Synthesizer(1, cache_bytes=0)
    for ident in [*range(30), *range(30)]:
        for language in LANGUAGES:
            assert small.block("s", ident, 400, language) == none.block("s", ident, 400, language)
    kept = small.block("s", 1, 400)
    assert small.block("s", 1, 400) is kept
    for ident in range(2, 60):  # of about 2,000 bytes each
        small.block("s", ident, 400)
    assert small.block("s", 1, 400) is not kept
    assert none.block("s", 1, 400) is not none.block("s", 1, 400)


def test_cache_takes_no_more_memory_than_it_may():
    synthesizer = Synthesizer(1, cache_bytes=200_000)
    synthesizer.block("s", 0, 400)
    tracemalloc.start()
    try:
        for ident in range(1, 1_000):
            synthesizer.block("s", ident, 400)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 150_000 < held < 400_000, "its texts, and what Python needs to find them; 2 MB were made"


@pytest.mark.parametrize("language", LANGUAGES)
def test_text_is_made_at_50_megabytes_per_second(language):
    """The best of several tries: this machine may be busy, and the bound is a tenth of what it does alone."""
    synthesizer = Synthesizer(1, cache_bytes=0)
    synthesizer.block("s", 0, 10, language)
    best = 0.0
    for attempt in range(5):
        begun = time.perf_counter()
        size = sum(len(synthesizer.block("s", attempt * 10_000 + k, 512, language)) for k in range(4000))
        best = max(best, size * (3 if language == "zh" else 1) / (time.perf_counter() - begun))
    assert best > 50e6


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_million_tokens_hold_nobody_up(language):
    """One text of 5 MB is made in one go: a few milliseconds, the best of several on a busy machine."""
    synthesizer = Synthesizer(1, cache_bytes=0)
    synthesizer.block("s", 0, 10, language)
    times = []
    for ident in range(5):
        begun = time.perf_counter()
        text = synthesizer.block("s", ident, 1_000_000, language)
        times.append(time.perf_counter() - begun)
        assert len(text) > 1_000_000
    assert min(times) < 0.05


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_pool_has_every_word_equally_often(language):
    """So that slices of it differ less than by chance, where only the tokens of a whole deck are known."""
    material = Material(key_of(3), language)
    held: list[str] = []
    for deck in range(DECKS):
        first, end = material.first_of(deck)
        assert first == sum(len(word) if language == "zh" else 1 for word in held)
        words = material.words[deck::DECKS]
        text = material.slice(first, end)
        if language == "en":
            assert sorted(word.strip(".,").lower() for word in text.split()) == sorted(words)
        else:
            assert sorted(text.replace("，", "").replace("。", "")) == sorted("".join(words))
        held += words
    assert len(held) == len(set(held)) == len(material.words)
    assert len(material.starts) == POOL_UNITS > 2 * PIECE_UNITS


# ------------------------------------------------------------------------------------------------------------ framing

FRAMED = TextLengths(
    method="endpoint",
    chars_per_token=5.0,
    word_tokens=1.0,
    separator_tokens=1.0,
    salt_tokens=15.5,
    request_tokens=30.0,
    system_request_tokens=8.0,
    message_tokens=5.0,
)
USER = {"role": "user", "content": ""}
SYSTEM = {"role": "system", "content": ""}


def block(tokens: int, ident: int = 1, **more: object) -> BlockText:
    return BlockText(scope="s", ids=(ident,), tokens=(tokens,), **more)


FRAMING = Synthesizer(1, lengths={"en": FRAMED})


def framing(salted: bool = False) -> Framing:
    return Framing(FRAMING, salted=salted)


def held(texts: list[BlockText | None]) -> float:
    return sum(FRAMING.tokens(text) for text in texts if text is not None)


@pytest.mark.parametrize(
    ("messages", "texts", "salted", "room", "why"),
    [
        ([USER], [block(500)], False, 470, "the template of one user message"),
        ([USER], [block(500)], True, 454.5, "and the salt's line"),
        ([SYSTEM, USER], [block(50, 9, shared=True), block(450)], False, 487, "a system message of our own"),
        ([USER], [block(500, last=True)], False, 470, "a text that comes after what its message says"),
        ([USER], [BlockText(scope="s", ids=(1, 2, 3), tokens=(512, 512, 300))], False, 1294, "a part of a block"),
    ],
)
def test_framing_is_taken_out_of_the_last_text(messages, texts, salted, room, why):
    found = framing(salted).fitted(0, messages, texts)
    assert abs(held(found) - room) <= 1, why
    assert found[:-1] == texts[:-1]
    assert msgspec.structs.replace(found[-1], tokens=texts[-1].tokens) == texts[-1], "only its length changes"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (block(500, shared=True), "other requests hold it"),
        (None, "there is nothing to take from"),
    ],
)
def test_texts_of_several_requests_stay_as_they_are(text, why):
    assert framing().fitted(0, [USER], [text]) == [text], why


def test_what_finds_no_room_is_taken_out_of_a_later_turn():
    walk = framing()
    first = walk.fitted(0, [USER], [block(10)])
    assert held(first) == 7, "the head alone, 27 too many with the template"
    second = walk.fitted(2, [USER], [block(200, 2)])
    assert abs(held(second) - (200 - 27 - 2 * 5)) <= 1, "answer and question are two messages more"
    walk.restart()
    again = walk.fitted(0, [USER], [block(500, 3)])
    assert abs(held(again) - 470) <= 1, "the whole request is new"


def test_usual_lengths_take_nothing_out():
    texts = [block(400)]
    found = Framing(Synthesizer(1), salted=True).fitted(0, [USER], texts)
    assert abs(Synthesizer(1).tokens(found[0]) - 400) <= 0.5
    assert USUAL_LENGTHS["en"].method == "ratio"


def test_a_text_of_an_earlier_turn_is_the_same_in_every_later_request():
    turns = tuple(Turn(messages=(USER,), texts=(block(100, number),), answer_text=block(30, 50)) for number in range(4))
    walk = Conversation(Session(session_id="s", turns=turns), synthesizer=FRAMING, salt="0" * 16)
    before: list[object] = []
    while (turn := walk.next_turn()) is not None:
        assert turn.messages[: len(before)] == before
        before = turn.messages
        walk.answered("")
    assert len(before) == 7


@pytest.mark.parametrize(
    ("sizes", "wanted", "why"),
    [
        (
            (512, 512),
            (505, 512),
            "30 of the template, less the half behind the text and the 8 that boundaries may be late",
        ),
        ((512, 512, 300), (505, 512, 278), "a part of a block is the request's own: it gives the rest"),
        ((12, 12, 12), (8, 9, 12), "a block keeps its head and the line end, and the next one gives more"),
    ],
)
def test_framing_is_taken_out_of_the_first_blocks_as_of_every_request_that_begins_so(sizes, wanted, why):
    row = BlockText(scope="s", ids=tuple(range(1, 1 + len(sizes))), tokens=sizes, shared=len(set(sizes)) == 1)
    (found,) = framing().fitted(0, [USER], [row])
    assert found is not None and found.tokens == wanted, why


@settings(deadline=None)
@given(tokens=st.integers(60, 5000), salted=st.booleans(), shares=st.integers(0, 3), block_tokens=st.integers(16, 512))
def test_rows_of_blocks_share_their_full_blocks(tokens, salted, shares, block_tokens):
    """Two rows with the same first ids have the same text as far as those go, whatever their framing took."""
    shares = min(shares, (tokens - 1) // block_tokens)
    rows = []
    for own, longer in ((100, 0), (200, 77)):
        count = -(-(tokens + longer) // block_tokens)
        ids = (*range(shares), *range(own, own + count - shares))
        sizes = (block_tokens,) * (count - 1) + (tokens + longer - block_tokens * (count - 1),)
        rows.append(BlockText(scope="s", ids=ids, tokens=sizes))
    one, two = (framing(salted).fitted(0, [USER], [row])[0] or row for row in rows)
    assert one.tokens[:shares] == two.tokens[:shares] and sum(one.tokens) <= tokens
    if shares:
        whole = FRAMING.text(msgspec.structs.replace(one, ids=one.ids[:shares], tokens=one.tokens[:shares]))
        assert FRAMING.text(one).startswith(whole) and FRAMING.text(two).startswith(whole)


def test_costs_without_marks_go_by_words_and_letters():
    material = Material(key_of(1), "en")
    costs = costs_of(
        material, TextLengths(method="calibrated", chars_per_token=4.0, word_tokens=0.5, letter_tokens=0.2)
    )
    word = material.slice(0, 1)
    marked = word[-1] in ".,"
    assert costs.before[1] == pytest.approx(0.5 + 0.2 * (len(word) - marked) + marked)
