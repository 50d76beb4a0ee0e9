"""Which modules adapters may be put on, of models with a trace and without."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import call, move_elsewhere
from tests.support.requests import Asked
from zerokit.catalog import gpus, profiles
from zerokit.cli import run
from zerokit.domain.deepspeed_settings import DeepSpeedSettings, ZeroSettings
from zerokit.domain.families import from_config
from zerokit.domain.fsdp2_settings import Fsdp2Settings
from zerokit.domain.hardware import Cluster
from zerokit.domain.job import Job
from zerokit.domain.script_profile import RehearsedStrategy, ScriptProfile
from zerokit.domain.strategy import MemoryEstimate, RankEstimate, Strategy
from zerokit.errors import MemoryUnknown
from zerokit.planner.memory_source import Model, ScriptMemory, Source


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    move_elsewhere(tmp_path, monkeypatch)


def test_adapters_go_on_modules_that_the_model_has(capsys: pytest.CaptureFixture[str]) -> None:
    common = ("--model", "llama-3.1-8b", "--gpus", "1", "--gpu", "h200", "--method", "lora", "--lora-targets")
    assert call(capsys, "plan", *common, "q_proj,self_attn.v_proj")[0] == 0
    for targets, words in (("q_proj,v_prj", "v_prj: llama-3.1-8b has no such module; use some of "
                            "embed_tokens, q_proj, k_proj"), (",", "names no module")):  # fmt: skip
        code, _, err = call(capsys, "plan", *common, targets)
        assert code == 2 and "--lora-targets" in err and words in err


def test_a_misspelt_module_is_refused_beside_a_right_one_in_closed_form_too(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Of mistral-7b-v0.1 there is no trace; heads, tables and one layer's modules may be meant."""
    common = ("plan", "--gpus", "1", "--gpu", "rtx-3090", "--method", "qlora", "--explain", "--lora-targets")
    named = (*common[:1], "--model", "mistral-7b-v0.1", *common[1:])
    for targets in ("v_prj", "q_proj,v_prj", "q_proj,layers.3.self_attn.vproj"):
        code, _, err = call(capsys, *named, targets)
        wrong = targets.rpartition(",")[2]
        assert (
            code == 2 and f"--lora-targets {wrong}: mistral-7b-v0.1 has no such module; use some of " in err
        )
        assert "q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj, or all-linear" in err
    for other in ("lm_head", "embed_tokens", "layers.3.self_attn.v_proj"):
        code, out, _ = call(capsys, *named, f"q_proj,{other}")
        assert code == 0 and f"adapters on {other} not counted" in " ".join(out.split())
    stand_in = (
        *common[:1],
        "--params",
        "14b",
        *common[1:],
    )  # whatever it is, it is not the model named for it
    assert call(capsys, *stand_in, "q_proj,c_proj")[0] == 0


JOB = Job(seq_len=128)
CLUSTER = Cluster(gpu=gpus.load("h200"), gpus=2, nodes=1)
TEACHER, LOGITS = 5_000, 70  # bytes in each phase, and of each sequence in forward and backward


def strategy(micro: int, *, stage: int = 2, accumulation: int = 1, checkpointing: str = "none") -> Strategy:
    settings = DeepSpeedSettings(
        micro_batch=micro, gradient_accumulation=accumulation, zero=ZeroSettings(stage=stage)
    )
    return Strategy(settings=settings, data_parallel=2, checkpointing=checkpointing)


def bound(job: Job, chosen: Strategy, cluster: Cluster) -> int:
    return replay(job, chosen, cluster).min_vram_bytes - 1


def replay(job: Job, chosen: Strategy, cluster: Cluster) -> MemoryEstimate:
    """Of a plain loop: two ranks, the second with a larger step."""
    micro, stage = chosen.settings.micro_batch, chosen.settings.zero.stage
    a_sequence = 100 if chosen.checkpointing == "none" else 20
    ranks = []
    for rank in range(2):
        phases = {
            "init": 900, "forward": 1000 - 100 * stage + a_sequence * micro,
            "backward": 1100 - 100 * stage + a_sequence * micro, "step": 1500 + 10 * rank,
        }  # fmt: skip
        peak = max(phases, key=phases.__getitem__)
        ranks.append(
            RankEstimate(
                first=rank,
                last=rank,
                peak_allocated_bytes=phases[peak],
                peak_phase=peak,
                phases=phases,
                components={"activations": phases[peak]},
            )
        )
    worst = max(rank.peak_allocated_bytes for rank in ranks)
    return MemoryEstimate(ranks=tuple(ranks), min_vram_bytes=worst + 300, host_bytes_per_node=1)


def truth(chosen: Strategy) -> dict[str, int]:
    """Of rank 0 of the script."""
    micro = chosen.settings.micro_batch
    plain = replay(JOB, chosen, CLUSTER).ranks[0].phases
    return {
        "load": 400, "init": plain["init"], "forward": plain["forward"] + TEACHER + LOGITS * micro,
        "backward": plain["backward"] + TEACHER + LOGITS * micro, "step": plain["step"] + TEACHER,
        "eval": plain["forward"] - 90 * micro + TEACHER,  # its batch does not follow the training's
    }  # fmt: skip


REPLAY = Asked(replay, least_vram_bytes=bound)


def rehearsed(*each: Strategy) -> ScriptMemory:
    found = [
        RehearsedStrategy(
            strategy=one,
            phases=(phases := truth(one)),
            min_vram_bytes=max(phases.values()) + 50,
            components={"activations": max(phases.values())},
        )
        for one in each
    ]
    return ScriptMemory(REPLAY, ScriptProfile(name="train.py", command="", rehearsed=tuple(found)))


@pytest.mark.parametrize("asked", [strategy(64), strategy(8, stage=1), strategy(16, stage=3)])
def test_what_the_script_holds_is_carried_to_other_batches_and_stages(asked: Strategy) -> None:
    memory = rehearsed(strategy(1), strategy(2))(JOB, asked, CLUSTER)
    expected, plain = truth(asked), replay(JOB, asked, CLUSTER)
    found = memory.ranks[0]
    assert {name: found.phases[name] for name in expected if name != "load"} == {
        name: size for name, size in expected.items() if name != "load"
    }
    assert found.peak_allocated_bytes == max(expected.values()) == sum(found.components.values())
    assert memory.min_vram_bytes - plain.min_vram_bytes == max(
        rank.peak_allocated_bytes for rank in memory.ranks
    ) - max(rank.peak_allocated_bytes for rank in plain.ranks)
    assert memory.basis == "traced"


def test_a_rehearsed_strategy_is_as_it_was_rehearsed_and_other_ranks_differ_as_in_the_replay() -> None:
    model = rehearsed(strategy(2, accumulation=2))
    memory = model(JOB, strategy(2, accumulation=9), CLUSTER)  # from the second micro-batch on all are alike
    expected = truth(strategy(2))
    first, second = memory.ranks
    assert memory.basis == "rehearsed"
    assert dict(first.phases) == expected
    assert second.phases["step"] == expected["step"] + 10
    assert sum(second.components.values()) == second.peak_allocated_bytes
    assert memory.min_vram_bytes == max(expected.values()) + 50 + max(
        0, second.peak_allocated_bytes - first.peak_allocated_bytes
    )
    assert model(JOB, strategy(2, accumulation=1), CLUSTER).basis == "traced"


def test_checkpointing_that_was_not_rehearsed_takes_the_sequence_from_the_other() -> None:
    memory = rehearsed(strategy(1), strategy(2), strategy(2, checkpointing="full"))
    found = memory(JOB, strategy(32, checkpointing="full"), CLUSTER)
    assert found.ranks[0].phases["backward"] == truth(strategy(32, checkpointing="full"))["backward"]


def test_the_bound_stays_below_what_is_predicted() -> None:
    model = rehearsed(strategy(1), strategy(2))
    leaner: Any = replace(
        model.script.rehearsed[0],
        phases={name: size - 6_000 for name, size in truth(strategy(1)).items()},
    )
    for memory in (model, ScriptMemory(REPLAY, replace(model.script, rehearsed=(leaner,)))):
        for micro in (1, 2, 8):
            least = memory.least_vram_bytes(JOB, strategy(micro), CLUSTER)
            assert least <= memory(JOB, strategy(micro), CLUSTER).min_vram_bytes


QLORA = ("--model", "llama-3.1-8b", "--method", "qlora", "--gpus", "1", "--gpu", "rtx-4090", "--seq-len",
         "2048", "--global-batch", "16", "--lora-rank", "64", "--lora-targets", "q_proj,v_proj")  # fmt: skip
ZERO_3 = ("--model", "llama-3.1-8b", "--method", "lora", "--gpus", "8", "--gpu", "h200", "--zero", "3",
          "--offload-optimizer", "cpu", "--checkpointing", "full", "--lora-targets", "q_proj")  # fmt: skip


@pytest.fixture(autouse=True)
def _nothing_traced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def _shown(capsys: pytest.CaptureFixture[str], folder: Path, *asked: str) -> list[str]:
    assert run(["plan", *asked, "--out", str(folder)]) == 0
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("asked", [QLORA, ZERO_3], ids=["qlora", "zero-3"])
def test_the_first_screen_names_the_closed_form_and_the_whole_command(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, asked: tuple[str, ...]
) -> None:
    lines = _shown(capsys, tmp_path / "plan", *asked)
    assert "Memory in closed form, not traced: activations ± 25 %, the rest ± 5 %; see Next" in lines[:4]
    shown = "\n".join(lines).rpartition("  zerokit estimate ")[2]
    command, comment, _ = shown.partition("# traces the model; then plan again\n")
    assert comment, shown
    words = shlex.split(command.replace("\\\n", " "))
    given = dict(zip(asked[::2], asked[1::2], strict=True))
    traced = dict(zip(words[::2], words[1::2], strict=True))
    assert {name: traced.pop(name) for name in given} == given
    assert traced.keys() <= {"--micro-batch", "--gradient-accumulation", "--checkpointing"}


def test_the_command_is_of_the_plans_batch(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Whose estimate is the plan's, and whose own next command is."""
    asked = [word for word in QLORA if word not in ("--global-batch", "16")]
    lines = _shown(capsys, tmp_path / "plan", *asked)
    steps = re.search(r"× (\d+) accumulation", "\n".join(lines))
    assert steps is not None and int(steps[1]) > 1
    assert f"--gradient-accumulation {steps[1]}" in " ".join(" ".join(lines).split())


def test_what_decides_the_trace_of_the_chosen_strategy_is_added(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    asked = ("--model", "llama-3.1-8b", "--method", "lora", "--lora-targets", "q_proj", "--gpus", "2",
             "--gpu", "rtx-4090", "--seq-len", "8192", "--json")  # fmt: skip
    assert run(["plan", *asked]) == 0
    body = json.loads(capsys.readouterr().out)
    (note,) = (note for note in body["assumptions"] if note.startswith("to trace the model"))
    stage, kind = body["chosen"]["zero_stage"], body["chosen"]["activation_checkpointing"]
    assert stage and kind == "full"
    assert f"--zero {stage}" in note and "--checkpointing full" in note and "--lora-targets q_proj" in note


def test_a_traced_plan_has_neither(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    asked = ("--model", "llama-3.1-8b", "--gpus", "8", "--gpu", "h200")
    text = "\n".join(_shown(capsys, tmp_path / "plan", *asked))
    assert "closed form" not in text and "zerokit estimate" not in text


def test_what_the_replay_of_fsdp2_does_not_know_is_refused_by_name() -> None:
    """FSDP2 has no closed form: neither fp16 nor a model without a trace falls back on DeepSpeed's."""
    profile = profiles.load("llama-3.2-1b")
    assert profile is not None
    shape = from_config(profile.hf_config, name=profile.name)
    settings = Fsdp2Settings(precision="bf16")
    known = Strategy(settings=settings, data_parallel=2)
    cases = (
        (profile, replace(known, settings=replace(settings, optimizer="Muon")), "for optimizer Muon"),
        (None, known, "for this model, or it could not be traced"),
    )
    for traced, chosen, words in cases:
        source = Source(shape=shape, name=profile.name, head="causal", profile=traced, looked=True)
        with pytest.raises(MemoryUnknown, match=f"fsdp2 is not modelled {words}"):
            Model(source=source)(Job(seq_len=1024), chosen, CLUSTER)
    source = Source(shape=shape, name=profile.name, head="causal", profile=profile, looked=True)
    assert Model(source=source)(Job(seq_len=1024), known, CLUSTER).basis == "traced"
