"""What the logs of coding agents share: the prompt that they leave out, answers with open calls, user messages.

The agents write down the conversation, but not what stands before it in every request: their own instructions and the
tools' definitions, often more than 15,000 tokens. The log's token counts say how much that was.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from infersiege.records import BlockText, Turn
from infersiege.traces.inspection.message_size import message_tokens
from infersiege.traces.options import Option
from infersiege.traces.trace import ReadOptions

FILL = Option(
    default=True,
    meaning="put a text of the missing length where the agent's own instructions and tools stood (they are not in the "
    "file), the same in every session; false: requests hold what the file has, and are shorter than recorded",
)


def filled(turns: Sequence[Turn], *, scope: str, ident: int, options: ReadOptions) -> list[Turn]:
    """The turns of one line with the missing first tokens: what the first request is known to have held, less what its
    messages have by estimate. Where sessions miss different lengths, the shorter text begins the longer one."""
    asked = turns[0].asked_prompt_tokens if turns else None
    if not options.values["fill"] or asked is None:
        return list(turns)
    missing = asked - sum(map(message_tokens, turns[0].messages))
    if missing <= 0:
        return list(turns)
    tokens = options.prompt_tokens(missing)
    block = BlockText(scope=scope, ids=(ident,), tokens=(tokens,), language=options.language, shared=True)
    found = []
    for number, turn in enumerate(turns):
        if turn.asked_prompt_tokens is not None:
            turn = msgspec.structs.replace(turn, asked_prompt_tokens=turn.asked_prompt_tokens + tokens - missing)
        found.append(_led(turn, block) if number == 0 or turn.replaces_history else turn)
    return found


def _led(turn: Turn, block: BlockText) -> Turn:
    """The turn with the text at its front: in its system message, or in one that is put there."""
    messages, texts = turn.messages, turn.texts or (None,) * len(turn.messages)
    if not messages or messages[0]["role"] != "system":
        messages, texts = ({"role": "system", "content": ""}, *messages), (None, *texts)
    return msgspec.structs.replace(turn, messages=messages, texts=(block, *texts[1:]))
