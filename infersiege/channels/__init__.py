"""Where requests go and what comes back: dialects (wire protocols) and profiles (engines). Pure, no sockets."""

from __future__ import annotations

from infersiege.channels.anthropic_messages import AnthropicMessages
from infersiege.channels.dialect import Dialect
from infersiege.channels.openai_chat import OpenAIChat
from infersiege.channels.openai_completions import OpenAICompletions
from infersiege.channels.openai_responses import OpenAIResponses
from infersiege.channels.profiles import PROFILES, Profile, key_headers

__all__ = ["DIALECTS", "LATER_DIALECTS", "PROFILES", "Dialect", "Profile", "key_headers"]

DIALECTS: dict[str, Dialect] = {
    "openai-chat": OpenAIChat(),
    "openai-completions": OpenAICompletions(),
    "openai-responses": OpenAIResponses(),
    "anthropic-messages": AnthropicMessages(),
}
"""Dialect name of a plan -> dialect. Dialects hold no state."""

LATER_DIALECTS: tuple[str, ...] = ()
"""Names that a plan may come to use: asking for one is an error that says so, not an unknown word."""
