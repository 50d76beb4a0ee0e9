"""All layers of a script under DeepSpeed or FSDP2, from two rehearsals of a few: what the others take the
replay says, of the configuration that the engine ran with."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from zerokit.domain.deepspeed_settings import from_config
from zerokit.domain.fsdp2_settings import Fsdp2Settings
from zerokit.domain.hardware import Gpu
from zerokit.domain.script_profile import RehearsedStrategy
from zerokit.domain.strategy import Strategy
from zerokit.errors import InputError, ZerokitError
from zerokit.planner.few_layers import Depth
from zerokit.planner.one_strategy import StrategyFile, one_strategy
from zerokit.planner.request import resolve
from zerokit.rehearsal.changes import changes, could_halve
from zerokit.rehearsal.order import ENGINE
from zerokit.rehearsal.result import GATHERED, HeldAtPeak, RankMemory, Rehearsal
from zerokit.rehearsal.trained_model import options_of
from zerokit.search.space import Request

_MOST_UNLIKE = 0.001
"""By how much, as a share of a peak, what is live may be more or less than the layers' growth says."""


def rehearsed_strategy(done: Rehearsal, strategy: Strategy) -> RehearsedStrategy | None:
    """What the planner takes of a rehearsal; None: it did not go to the end."""
    rank = done.ranks[0]
    if not done.complete or not done.steps or not rank.phases or done.min_vram_bytes is None:
        return None
    step = done.step_of_run
    untimed = done.untimed or "not all ranks that a step waits for were rehearsed"
    parts: Counter[str] = Counter()
    for row in rank.at_peak:
        parts[row.what.replace(" ", "_")] += row.bytes
    fed = replace(done.fed, batches=strategy.settings.gradient_accumulation).text if done.fed else ""
    return RehearsedStrategy(
        strategy=strategy,
        phases=rank.phases,
        min_vram_bytes=done.min_vram_bytes,
        components=dict(parts),
        not_modelled=tuple(sorted({reason for some in rank.lower_bounds.values() for reason in some})),
        step_seconds=step.seconds if step is not None else None,
        step_seconds_range=(step.low, step.high) if step is not None else None,
        step_seconds_by_host_factor=step.by_host_factor if step is not None else (),
        host_factor=step.host_factor if step is not None else None,
        untimed=untimed if step is None else "",
        warnings=done.warnings,
        fed=fed,
    )


def all_layers(fewer: Rehearsal, more: Rehearsal, gpu: Gpu, folder: Path) -> Rehearsal | str:
    """The rehearsal with all layers, or why these two do not tell; ``folder``: where the engine's
    configuration was written."""
    if fewer.few_layers is None or more.few_layers is None:
        return "the model has no more than a few"
    (low,), (high,), of = fewer.few_layers["layers"], more.few_layers["layers"], more.few_layers["of"]
    try:
        request, strategy = _as_ran(fewer, gpu, json.loads((folder / ENGINE).read_text()))
        few, further = rehearsed_strategy(fewer, strategy), rehearsed_strategy(more, strategy)
        if few is None or further is None:
            return "a rehearsal of a few did not go to the end"
        whole = Depth.of_two(request, few, further, low, of)
    except ZerokitError as error:
        return str(error)
    if whole is None:
        return "layers take something else than the replay says"
    growth = _Growth(more=of - high, over=high - low)
    rank = growth.rank(fewer.ranks[0], more.ranks[0], whole)
    if rank.peak_phase not in whole.phases:
        return f"with all layers the highest is {rank.peak_phase}, of which there is no replay"
    needed = whole.min_vram_bytes
    step = more.step
    if step is not None and whole.step_seconds is not None and whole.step_seconds_range is not None:
        step = replace(
            step, seconds=whole.step_seconds, low=whole.step_seconds_range[0],
            high=whole.step_seconds_range[1], by_host_factor=whole.step_seconds_by_host_factor,
            parts=growth.each(fewer.step.parts if fewer.step is not None else {}, step.parts),
        )  # fmt: skip
    fits = needed <= more.vram_bytes if more.fits is not None and more.vram_bytes else more.fits
    return replace(
        more,
        depth={"layers": [low, high], "of": of},
        ranks=(rank,),
        min_vram_bytes=needed,
        fits=fits,
        step=step,
        step_seconds=whole.step_seconds,
        step_seconds_range=whole.step_seconds_range,
        changes=changes(
            rank,
            more.gpus,
            more.engine,
            fully_sharded=more.fully_sharded,
            batch_rows=(more.engine or {}).get("batch_rows"),
            checkpointing=(more.engine or {}).get("gradient_checkpointing"),
            halved=could_halve(gpu, more.fed),
        ),
        seconds=fewer.seconds + more.seconds,
        cpu_seconds=fewer.cpu_seconds + more.cpu_seconds,
    )


def _as_ran(done: Rehearsal, gpu: Gpu, config: Mapping[str, Any]) -> tuple[Request, Strategy]:
    """The request and the strategy that an engine ran with, its model with all layers. Raises ZerokitError:
    no plan says them."""
    engine = done.engine or {}
    nodes = -(-done.gpus // gpu.max_gpus_per_node)
    options: dict[str, Any] = {"gpu": done.gpu, "gpus": str(done.gpus)}
    if nodes > 1:
        options["nodes"] = str(nodes)
    options |= options_of(done, {}, 1)[0]
    model = done.model or {}
    options["checkpointing"] = "full" if engine.get("gradient_checkpointing") else "none"
    if engine.get("gradient_checkpointing") and model.get("reentrant") is not None:
        options["reentrant"] = "on" if model["reentrant"] else "off"
    if model.get("lora_narrow"):  # as TRL makes adapters under ZeRO-3; the loss is the same at any depth
        options |= {"trainer": "trl", "loss": "standard"}
    request = resolve(options, single=True, file=True).request
    if (groups := engine.get("optimizer_groups", ())) is None:
        raise InputError("the optimizer's groups of parameters are not known")
    request = replace(request, job=replace(request.job, optimizer_groups=tuple(groups)))
    rows = max(engine.get("batch_rows") or 1, engine.get("micro_batch") or 1)  # pairs are several
    if engine.get("engine") == "fsdp2":
        checkpointing = options.get("checkpointing", "none")
        settings = _divided(engine, done.gpus, rows, done.fed.batches if done.fed is not None else 1)
        return request, Strategy(settings=settings, data_parallel=done.gpus, checkpointing=checkpointing)
    file = StrategyFile(
        path=Path(ENGINE),
        config={**config, "train_micro_batch_size_per_gpu": rows, "train_batch_size": None},
        settings=from_config(config),
    )
    return request, one_strategy(request, file)[0]


def _divided(facts: Mapping[str, Any], ranks: int, rows: int, batches: int) -> Fsdp2Settings:
    """The settings that FSDP2 ran with. Raises InputError: what it ran with could not be read."""
    if None in (
        facts["optimizer"],
        facts["sharding"],
        facts["reshard_after_forward"],
        facts["precision"],
        facts["wrapping"],
    ):
        raise InputError("what FSDP2 ran with is not known")
    return Fsdp2Settings(
        precision=facts["precision"], micro_batch=rows, gradient_accumulation=batches,
        reshard_after_forward=facts["reshard_after_forward"], replicas=ranks // facts["sharding"],
        offload=facts["offload_param"] == "cpu", reduce_dtype=facts["reduce_dtype"],
        master_bytes=4 if facts["shard_dtype"] == "float32" else 2,
        frozen_bytes={"float32": 4, "bfloat16": 2, "float16": 2}.get(str(facts.get("frozen_dtype"))),
        wrapping=facts["wrapping"], optimizer=facts["optimizer"], torch_adam=not facts["fused"],
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class _Growth:
    """From two depths to all layers: ``more`` of them, of which ``over`` lie between the two."""

    more: int
    over: int

    def of(self, fewer: float, more: float) -> int:
        """What grows by as much with each layer."""
        return max(0, round(more + (more - fewer) / self.over * self.more))

    def sizes(self, fewer: Mapping[str, int], more: Mapping[str, int]) -> dict[str, int]:
        """The same of several sizes. Bytes."""
        return {name: self.of(fewer.get(name, 0), size) for name, size in more.items()}

    def each(self, fewer: Mapping[str, float], more: Mapping[str, float]) -> dict[str, float]:
        """The same of several."""
        return {
            name: max(0.0, some + (some - fewer.get(name, 0.0)) / self.over * self.more)
            for name, some in more.items()
        }

    def rank(self, fewer: RankMemory, more: RankMemory, whole: RehearsedStrategy) -> RankMemory:
        """What the rank takes, of which the replay has the peaks, and what is live at the highest where that
        is not what was live with a few layers."""
        all_phases = {**self.sizes(fewer.phases, more.phases), **whole.phases}
        all_phases = {name: all_phases[name] for name in more.phases}
        host = self.sizes(fewer.host_phases, more.host_phases)
        highest = max(all_phases, key=all_phases.__getitem__)
        live = {
            phase: self._live(fewer.at_peaks.get(phase, ()), rows, all_phases[phase])
            for phase, rows in more.at_peaks.items()
        }
        peak = all_phases[highest]
        at_peak = live.get(highest) or tuple(
            HeldAtPeak(what=name.replace("_", " "), module="", location="", bytes=size)
            for name, size in sorted(whole.components.items(), key=lambda part: -part[1])
        )
        added = peak - more.peak_allocated_bytes
        return replace(
            more,
            host_bytes=max(host.values(), default=0),
            host_phases=host,
            written_bytes=self.of(fewer.written_bytes, more.written_bytes),
            managed_bytes=self.of(fewer.managed_bytes, more.managed_bytes),
            peak_reserved_bytes=more.peak_reserved_bytes + added,
            peak_allocated_bytes=peak,
            peak_phase=highest,
            smallest_reserved_bytes=more.smallest_reserved_bytes + added,
            phases=all_phases,
            at_peak=at_peak,
            at_peaks={phase: rows for phase, rows in live.items() if rows is not None},
            freed=self.sizes(fewer.freed, more.freed),
        )

    def _live(
        self, fewer: Sequence[HeldAtPeak], more: Sequence[HeldAtPeak], peak: int
    ) -> tuple[HeldAtPeak, ...] | None:
        """What is live at a phase's peak, with the rest among what has no name."""
        before, now = _by_place(fewer), _by_place(more)
        rows = [
            HeldAtPeak(what=what, module=module, location=location, bytes=self.of(before[place], size))
            for place, size in now.items()
            for what, module, location in [place]
        ]
        rest = peak - sum(row.bytes for row in rows)
        if abs(rest) > _MOST_UNLIKE * peak:
            return None
        rows.sort(key=lambda row: -row.bytes)
        if rest:
            rows[0] = replace(rows[0], bytes=rows[0].bytes + rest)
        return tuple(row for row in rows if row.bytes)


def _by_place(rows: Sequence[HeldAtPeak]) -> Counter[tuple[str, str, str]]:
    """Bytes by what, module and line; which weights are gathered at an instant changes with the layers."""
    result: Counter[tuple[str, str, str]] = Counter()
    for row in rows:
        place = ("", "") if row.what == GATHERED else (row.module, row.location)
        result[row.what, place[0], place[1]] += row.bytes
    return result
