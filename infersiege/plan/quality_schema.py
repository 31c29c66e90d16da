"""[quality]: checked prompts in the load."""

from __future__ import annotations

from typing import Annotated

import msgspec

from infersiege.plan.bounds import meta


class Quality(msgspec.Struct, frozen=True, kw_only=True):
    """[quality]: checked prompts mixed into the load (docs/quality.md)."""

    file: Annotated[
        str, meta("Prompts and checks: `builtin:basic`, or a file (JSON Lines or TOML, relative to the plan file)")
    ] = "builtin:basic"
    share: Annotated[
        float,
        meta(
            "Share of the sessions of [load] that are checked prompts instead; 1: they are sent by themselves",
            unit="ratio",
            above=0,
            at_most=1,
        ),
    ] = 0.02
    tools: Annotated[bool, meta("Send the prompts that call tools, too; set false for servers without")] = True
    allow_code: Annotated[
        bool, meta("Let checks of the file call functions of yours (`callable`): it runs code on every worker")
    ] = False
    keep_answers: Annotated[
        bool,
        meta(
            "Keep what answers said that failed a check, or could not be checked, cut and redacted; else no answer is"
        ),
    ] = False
