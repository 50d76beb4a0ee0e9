"""What a rehearsal of a few layers says of all, beside what a GPU measured of all."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from zerokit.domain.deepspeed_settings import from_config
from zerokit.domain.script_profile import RehearsedStrategy
from zerokit.domain.strategy import Strategy
from zerokit.planner.few_layers import Depth
from zerokit.planner.one_strategy import StrategyFile, one_strategy
from zerokit.planner.request import resolve
from zerokit.search.space import Request

MIB = 1 << 20
OF_THREE = {
    "load": 0.001, "init": 6640.002, "forward": 12915.538, "backward": 16513.883, "step": 14670.263,
    "save": 9360.1,
}  # fmt: skip
OF_SIX = {
    "load": 0.001, "init": 9520.002, "forward": 18484.373, "backward": 22082.73, "step": 21007.675,
    "save": 13392.1,
}  # fmt: skip
"""MiB: TRL 1.16's sft.py with the first 3 and 6 of 28 layers of Llama 3.2 3B, rehearsed as below."""
MEASURED = {"init": 29.92, "backward": 62.90, "step": 65.89}
"""GiB: the same with all layers on an H200 (torch 2.11, transformers 5.17); its forward has TRL's loss in
Triton, which the rehearsal's machine had not. Backward is highest at its end; of three layers at the loss."""


@pytest.fixture(scope="module")
def request_and_strategy() -> tuple[Request, Strategy]:
    options = {"model": "llama-3.2-3b", "gpus": 1, "gpu": "h200", "seq_len": 4096, "zero": 2,
               "micro_batch": 1, "gradient_accumulation": 1, "checkpointing": "none"}  # fmt: skip
    request = resolve(options).request
    strategy = one_strategy(request)[0]
    zero = replace(
        strategy.settings.zero, reduce_bucket_size=10**7, allgather_bucket_size=10**7, overlap_comm=False
    )
    return request, replace(strategy, settings=replace(strategy.settings, zero=zero))


def rehearsed(strategy: Strategy, phases: dict[str, float], unit: int = MIB) -> RehearsedStrategy:
    sizes = {phase: round(size * unit) for phase, size in phases.items()}
    peak = max(sizes.values())
    return RehearsedStrategy(
        strategy=strategy, phases=sizes, min_vram_bytes=peak + 3000 * MIB, components={"loss": peak}
    )


def test_a_peak_that_few_layers_have_elsewhere(request_and_strategy: tuple[Request, Strategy]) -> None:
    request, strategy = request_and_strategy
    whole = Depth(layers=3, of=28, time_factor=None).whole(request, rehearsed(strategy, OF_THREE))
    assert whole is not None and whole.layers == (3, 28)
    assert {phase: whole.phases[phase] / 1024 / MIB for phase in MEASURED} == pytest.approx(
        MEASURED, rel=5e-4
    )
    # of loading and saving a replay knows nothing
    assert set(whole.phases) == {"init", "forward", "backward", "step"}
    assert sum(whole.components.values()) == whole.peak_allocated_bytes
    assert whole.min_vram_bytes - whole.peak_allocated_bytes == 3000 * MIB


LORA_OF_THREE: dict[str, float] = {
    "load": 1024, "init": 3433621504, "forward": 4148359168, "backward": 5081200128, "step": 3591665152,
    "save": 3508697088, "other": 3575804416,
}  # fmt: skip
LORA_OF_ALL = {"init": 16312182784, "forward": 18076020736, "backward": 19008861696, "step": 16698160640}
"""Bytes: LoRA of Llama 3.1 8B by TRL 1.16's sft.py on two H200s, with its loss in Triton (torch 2.13),
rehearsed with three layers and with all. The embeddings and their gradient live until the step."""


def test_what_lives_until_the_step_counts_once() -> None:
    options = {"model": "llama-3.1-8b", "gpus": 2, "gpu": "h200", "seq_len": 4096, "zero": 2,
               "micro_batch": 1, "gradient_accumulation": 1, "checkpointing": "full", "method": "lora",
               "lora_rank": 16, "lora_targets": "all-linear", "lora_dropout": 0.05}  # fmt: skip
    request = resolve(options).request
    strategy = one_strategy(request)[0]
    whole = Depth(layers=3, of=32, time_factor=None).whole(request, rehearsed(strategy, LORA_OF_THREE, 1))
    assert whole is not None
    assert dict(whole.phases) == pytest.approx(LORA_OF_ALL, rel=1e-5)


OF_DEFAULT_MODULES = {
    3: {"init": 1428153344, "forward": 5754609152, "backward": 7968855040, "step": 1564317184},
    6: {"init": 1592376320, "forward": 6021461504, "backward": 8235756544, "step": 1730506240},
    32: {"init": 3017214976, "forward": 8335820288, "backward": 10550115328, "step": 3172384256},
}
"""Bytes by layers: as above on eight H200s under ZeRO-3, on the modules that PEFT adapts by itself."""


def test_the_engine_makes_its_own_of_adapters() -> None:
    options = {"model": "llama-3.1-8b", "gpus": 8, "gpu": "h200", "seq_len": 4096, "checkpointing": "full",
               "method": "lora", "lora_rank": 16, "lora_targets": "q_proj,v_proj", "trainer": "trl",
               "loss": "standard"}  # fmt: skip
    request = resolve(options, single=True, file=True).request
    config = {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True},
              "zero_optimization": {"stage": 3}}  # fmt: skip
    file = StrategyFile(path=Path("ds_config.json"), config=config, settings=from_config(config))
    strategy = one_strategy(request, file)[0]
    few, more = (rehearsed(strategy, OF_DEFAULT_MODULES[layers], 1) for layers in (3, 6))
    depth = Depth.seen(request, few, more, 3, 32)
    assert depth is not None
    whole = depth.whole(request, few)
    assert whole is not None
    assert dict(whole.phases) == pytest.approx(OF_DEFAULT_MODULES[32], rel=6e-4)


@pytest.mark.parametrize("unlike", [{"save": 20000}, {"backward": 60000}, {"step": 14670.263 + 100}])
def test_what_few_layers_do_not_tell(
    unlike: dict[str, float], request_and_strategy: tuple[Request, Strategy]
) -> None:
    """The peak is where no replay is; at the loss, whose place in the whole model's backward is not known;
    where layers are highest with all, beside which what a step holds may be or not."""
    request, strategy = request_and_strategy
    few = rehearsed(strategy, {**OF_THREE, **unlike})
    assert Depth(layers=3, of=28, time_factor=None).whole(request, few) is None


def test_a_layer_takes_what_the_replay_says(request_and_strategy: tuple[Request, Strategy]) -> None:
    request, strategy = request_and_strategy
    pair = rehearsed(strategy, OF_THREE), rehearsed(strategy, OF_SIX)
    assert Depth.seen(request, *pair, layers=3, of=28) is not None
    kept = rehearsed(strategy, {**OF_SIX, "forward": OF_SIX["forward"] + 100})  # its hidden states, in fp32
    assert Depth.seen(request, pair[0], kept, layers=3, of=28) is None
    assert Depth.seen(request, *pair, layers=3, of=27) is None  # of another model than is planned for


OF_TRAINERS_GROUPS = {
    3: {"init": 6820054528, "forward": 9636336640, "backward": 12765004800, "step": 13052899328},
    6: {"init": 9437398528, "forward": 12956677120, "backward": 16086656000, "step": 17318648832},
    32: {"init": 32121046528, "forward": 41713300480, "backward": 46872489984, "step": 56367725568},
}
"""Bytes by layers: all weights of Llama 3.1 8B by TRL 1.16's sft.py on four H200s under ZeRO-2, 1,900 tokens,
with its loss in Triton (torch 2.13). Backward is highest at the loss with three and six layers, and with all
where the first bucket holds some of this rank's: norms of a layer further up, with a Trainer's groups."""


def test_the_groups_of_a_trainers_optimizer() -> None:
    options = {"model": "llama-3.1-8b", "gpus": 4, "gpu": "h200", "seq_len": 1900, "zero": 2,
               "micro_batch": 1, "gradient_accumulation": 1, "checkpointing": "full"}  # fmt: skip
    request = resolve(options).request
    strategy = one_strategy(request)[0]
    config = {
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 2},
        "train_micro_batch_size_per_gpu": 1,
    }
    strategy = replace(strategy, settings=from_config(config))

    def told(*groups: str) -> RehearsedStrategy | None:
        asked = replace(request, job=replace(request.job, optimizer_groups=groups))
        few, more = (rehearsed(strategy, OF_TRAINERS_GROUPS[layers], 1) for layers in (3, 6))
        depth = Depth.seen(asked, few, more, 3, 32)
        assert depth is not None and "backward" in depth.at_loss
        return replace(depth, layers=6).whole(asked, more)

    whole = told(r".*norm\.weight")
    assert whole is not None
    assert dict(whole.phases) == pytest.approx(OF_TRAINERS_GROUPS[32], rel=1e-4)
    one_group = told()
    assert one_group is not None
    assert one_group.phases["backward"] == pytest.approx(OF_TRAINERS_GROUPS[32]["backward"] * 0.989, rel=1e-3)
