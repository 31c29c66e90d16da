"""What each engine answers to GET: health, models, version, properties, load."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from infersiege.emulator.model import Engine
from infersiege.emulator.settings import EmulatorSettings

VERSION = "infersiege-emulator-1"
OWNER = "infersiege-emulator"


@dataclass(frozen=True, slots=True)
class State:
    """What pages show."""

    settings: EmulatorSettings
    engine: Engine


Page = Callable[[State], Any]
"""Gives a JSON value; None: 200 without a body."""


def _empty(state: State) -> None:
    return None


def _models(state: State) -> Any:
    settings = state.settings
    model: dict[str, Any] = {"id": settings.model, "object": "model", "created": int(time.time()), "owned_by": OWNER}
    if settings.profile in ("vllm", "sglang"):
        model |= {"root": settings.model, "parent": None, "max_model_len": settings.spec.max_model_len}
    if settings.profile == "llama.cpp":
        model["meta"] = {"n_ctx": settings.spec.max_model_len, "n_params": 0, "size": 0, "ftype": "emulated"}
    return {"object": "list", "data": [model]}


def _anthropic_models(state: State) -> Any:
    name = state.settings.model
    model = {"type": "model", "id": name, "display_name": name, "created_at": "2026-01-01T00:00:00Z", "owned_by": OWNER}
    return {"data": [model], "has_more": False, "first_id": name, "last_id": name}


def _sglang_server_info(state: State) -> Any:
    spec = state.settings.spec
    return {
        "model_path": state.settings.model,
        "served_model_name": state.settings.model,
        "context_length": spec.max_model_len,
        "max_running_requests": spec.max_num_seqs,
        "max_queued_requests": spec.max_queue,
        "chunked_prefill_size": spec.max_num_batched_tokens,
        "max_total_num_tokens": spec.kv_blocks * spec.block_size,
        "disable_radix_cache": not spec.prefix_caching,
        "version": VERSION,
    }


def _sglang_model_info(state: State) -> Any:
    name = state.settings.model
    return {"model_path": name, "served_model_name": name, "tokenizer_path": name, "is_generation": True}


def _sglang_loads(state: State) -> Any:
    engine, spec = state.engine, state.settings.spec
    load = {
        "dp_rank": 0,
        "num_running_reqs": len(engine.running),
        "num_waiting_reqs": len(engine.waiting),
        "num_used_tokens": engine.pool.used * spec.block_size,
        "max_total_num_tokens": spec.kv_blocks * spec.block_size,
        "max_running_requests": spec.max_num_seqs,
        "token_usage": engine.pool.used / engine.pool.capacity,
    }
    return {"version": VERSION, "num_accelerators": 1, "loads": [load]}


def _llama_props(state: State) -> Any:
    spec = state.settings.spec
    return {
        "default_generation_settings": {"n_ctx": spec.max_model_len},
        "total_slots": spec.max_num_seqs,
        "model_alias": state.settings.model,
        "model_path": state.settings.model,
        "chat_template": "emulated",
        "build_info": VERSION,
        "is_sleeping": False,
    }


def _llama_slots(state: State) -> Any:
    """A slot per seat; the running sequences take the first ones."""
    spec, slots = state.settings.spec, []
    for index in range(spec.max_num_seqs):
        slot: dict[str, Any] = {"id": index, "n_ctx": spec.max_model_len, "speculative": False, "is_processing": False}
        if index < len(state.engine.running):
            sequence = state.engine.running[index]
            cached = sequence.cached_tokens or 0
            slot |= {
                "is_processing": True,
                "n_prompt_tokens": sequence.prompt_tokens,
                "n_prompt_tokens_processed": max(0, min(sequence.computed, sequence.prompt_tokens) - cached),
                "n_prompt_tokens_cache": cached,
                "next_token": [{"has_next_token": True, "n_decoded": sequence.generated}],
            }
        slots.append(slot)
    return slots


def _llama_health(state: State) -> Any:
    return {"status": "ok"}


PAGES: dict[str, dict[str, Page]] = {
    "vllm": {
        "/health": _empty,
        "/ping": _empty,
        "/version": lambda state: {"version": VERSION},
        "/load": lambda state: {"server_load": len(state.engine.running) + len(state.engine.waiting)},
        "/v1/models": _models,
    },
    "sglang": {
        "/health": _empty,
        "/health_generate": _empty,
        "/server_info": _sglang_server_info,
        "/get_server_info": _sglang_server_info,
        "/model_info": _sglang_model_info,
        "/v1/loads": _sglang_loads,
        "/v1/models": _models,
    },
    "llama.cpp": {
        "/health": _llama_health,
        "/v1/health": _llama_health,
        "/props": _llama_props,
        "/slots": _llama_slots,
        "/models": _models,
        "/v1/models": _models,
    },
    "anthropic": {"/v1/models": _anthropic_models},
    "openai": {"/v1/models": _models},
}
"""Profile -> path -> page. `/metrics` is not among them: it is no JSON."""
