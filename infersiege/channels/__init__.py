"""Where requests go and what comes back: dialects (wire protocols) and profiles (engines). Pure, no sockets."""

from __future__ import annotations

from infersiege.channels.dialect import Dialect
from infersiege.channels.openai_chat import OpenAIChat
from infersiege.channels.profiles import PROFILES, Profile

__all__ = ["DIALECTS", "LATER_DIALECTS", "PROFILES", "Dialect", "Profile"]

DIALECTS: dict[str, Dialect] = {
    "openai-chat": OpenAIChat(),
}
"""Dialect name of a plan -> dialect. Dialects hold no state."""

LATER_DIALECTS: tuple[str, ...] = ("openai-completions", "openai-responses", "anthropic-messages")
"""Names that a plan may come to use: asking for one is an error that says so, not an unknown word."""
