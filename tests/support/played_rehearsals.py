"""Rehearsals of a script that nobody runs: a test says what its engine would show."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from zerokit.domain.script_profile import RehearsedStrategy
from zerokit.domain.strategy import Strategy
from zerokit.script_planner.rehearsals import RehearsedScript

PARAMETERS = 2 * 8000 * 512 + 4 * (4 * 512**2 + 3 * 512 * 1024 + 2 * 512) + 512
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 512,
    "intermediate_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 8, "vocab_size": 8000,
    "max_position_embeddings": 1024, "tie_word_embeddings": False,
}  # fmt: skip
"""Of a model that no catalogue has, so that the plan takes it from the rehearsal."""

Shown = Callable[[Strategy, tuple[str, ...]], dict[str, Any]]
"""From what is rehearsed, and the script's arguments, to the facts of the engine, and ``asked``: what the
code gives Accelerate."""


def play(
    monkeypatch: pytest.MonkeyPatch,
    shown: Shown,
    *,
    model: dict[str, Any] | None = None,
    step_seconds: float | Callable[[Strategy], float] | None = 0.25,
    untimed: str = "",
    host_factor: float | None = None,
) -> list[Strategy]:
    """Have each rehearsal show these facts; returns the strategies, as they are rehearsed.

    Args:
        model: what is known of it beside its configuration.
        step_seconds: of every strategy, or of each; None: no step is timed, and ``untimed`` says why.
        host_factor: of the host that the steps are timed for, where it was measured here.
    """
    rehearsed: list[Strategy] = []

    def rehearse(
        target: Any, options: Any, request: Any, strategy: Strategy, seconds: float, **_: Any
    ) -> RehearsedScript:
        rehearsed.append(strategy)
        settings = strategy.settings
        engine = {
            "micro_batch": settings.micro_batch, "gradient_accumulation": settings.gradient_accumulation,
            "precision": settings.precision, "batch_rows": settings.micro_batch, "batch_columns": 512,
            "parameters": PARAMETERS, "trainable_parameters": PARAMETERS, "engines": 1,
            **shown(strategy, target.arguments),
        }  # fmt: skip
        done: Any = SimpleNamespace(
            engine=engine, model={"config": CONFIG, "method": "full", **(model or {})}, stopped=None,
            ranks=(SimpleNamespace(phases={"load": 1, "forward": 2}),), when_kept="", few_layers=None,
            asked=tuple(engine.pop("asked", ())),
        )  # fmt: skip
        peak = 2 << 30
        result = RehearsedStrategy(
            strategy=strategy, phases={"forward": peak}, min_vram_bytes=peak + (1 << 30),
            components={"activations": peak}, untimed=untimed, host_factor=host_factor,
            step_seconds=step_seconds(strategy) if callable(step_seconds) else step_seconds,
        )  # fmt: skip
        return RehearsedScript(strategy=strategy, done=done, rehearsed=result)

    monkeypatch.setattr("zerokit.script_planner.planning.rehearse_strategy", rehearse)
    return rehearsed
