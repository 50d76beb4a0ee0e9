"""What keeps every plan from a script: found before anything is rehearsed or started."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.scripts_read import RAW, TRAINER, options
from zerokit.errors import InputError
from zerokit.script.agreement import agree, refuse_unplannable
from zerokit.script.unreached import obstacles

ACCELERATE = """
    from accelerate import Accelerator, DeepSpeedPlugin, FullyShardedDataParallelPlugin
    plugin = FullyShardedDataParallelPlugin(fsdp_version=2)
    def train(args):
        {}
"""
FIXED = """
    from transformers import Trainer, TrainingArguments
    Trainer(args=TrainingArguments('o', {})).train()
"""
OWN = RAW.replace("initialize()", "initialize(config={'train_batch_size': 8})")
WITH_FSDP = ACCELERATE.format("Accelerator(fsdp_plugin=plugin)")


@pytest.mark.parametrize(
    ("text", "arguments", "said"),
    [
        (WITH_FSDP, "", ":5: Accelerator(fsdp_plugin=FullyShardedDataParallelPlugin(…)): FSDP and DeepSpeed "
         "exclude each other; remove it"),
        (ACCELERATE.format("Accelerator(fsdp_plugin=args.plugin)"), "", None),
        (ACCELERATE.format("Accelerator(cpu=True)"), "", ":5: Accelerator(cpu=True): Accelerate then takes "
         "neither a GPU nor DeepSpeed; remove cpu=True"),
        (ACCELERATE.format("Accelerator(cpu=False)"), "", None),
        (ACCELERATE.format("Accelerator(cpu=args.cpu)"), "", None),
        (ACCELERATE.format("Accelerator(deepspeed_plugin=DeepSpeedPlugin(hf_ds_config='mine.json'))"), "",
         "(hf_ds_config='mine.json'): a DeepSpeed configuration of its own"),
        (FIXED.format("fsdp='full_shard'"), "", ":3: TrainingArguments(fsdp='full_shard'): FSDP and"),
        (FIXED.format("fsdp=''"), "", None),
        (TRAINER, "--fsdp full_shard", "--fsdp full_shard: FSDP and DeepSpeed exclude each other; leave it"),
        (TRAINER, "--bf16 True", None),
        (OWN, "", ":7: config={'train_batch_size': 8}: it gives deepspeed.initialize a configuration of its"),
        (RAW, "", None),
    ],
)  # fmt: skip
def test_what_no_plan_gets_past_is_named(tmp_path: Path, text: str, arguments: str, said: str | None) -> None:
    script = options(tmp_path, text, *arguments.split())
    found = [obstacle.text for obstacle in obstacles(script)]
    if said is None:
        assert found == []
        refuse_unplannable(script)
        return
    assert len(found) == 1 and said in found[0], found
    with pytest.raises(InputError, match=r"no plan reaches the script: .* to plan, or go on without a plan"):
        refuse_unplannable(script)


def test_a_launch_stops_and_says_how_to_do_without_a_plan(tmp_path: Path) -> None:
    """It does not also advise to plan again, or to accept a mismatch: neither helps."""
    script = options(tmp_path, WITH_FSDP)
    chosen = {"micro_batch": 4, "gradient_accumulation": 1}
    with pytest.raises(InputError) as refused:
        agree(
            script, chosen, {}, request={}, seq_len=128, method="full", lora=None, plan_folder=tmp_path,
            on_cpu=False, no_arguments=False, accept_mismatch=False,
        )  # fmt: skip
    assert str(refused.value).endswith("remove it, or launch it without a plan (no_plan=True)")
    agreed = agree(
        script, chosen, {}, request={}, seq_len=128, method="full", lora=None, plan_folder=tmp_path,
        on_cpu=False, no_arguments=False, accept_mismatch=True,
    )  # fmt: skip
    assert any("warning: no plan reaches the script: " in note for note in agreed.notes)
