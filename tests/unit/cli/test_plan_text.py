"""What ``zerokit plan`` tells beside the plan: the one it replaces, a surer one, memory in detail."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import zerokit
from tests.support.command import as_json, call, move_elsewhere
from zerokit.domain.script_profile import RehearsedStrategy, ScriptProfile
from zerokit.planner.plan_result import RehearsalRecord
from zerokit.search.explain import strategy_words
from zerokit.units import GIB
from zerokit.values import replace


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    move_elsewhere(tmp_path, monkeypatch)


def test_a_plan_names_the_one_that_it_replaces(capsys: pytest.CaptureFixture[str]) -> None:
    first = ("plan", "--model", "llama-3.1-8b", "--gpus", "8", "--gpu", "h200")
    second = ("plan", "--params", "7b", "--method", "qlora", "--gpus", "2", "--gpu", "l40s")
    assert "replaces" not in call(capsys, *first)[2] + call(capsys, *first)[2]  # the same again
    assert re.search(
        r"zerokit-plan: replaces the plan of \d{4}-\d\d-\d\d \d\d:\d\d for llama-3.1-8b on 8 × h200\n",
        call(capsys, *second)[2],
    )
    by_memory = ("plan", "--params", "1b", "--gpus", "1", "--vram", "24GiB")
    assert "on 1 × 24.0 GiB GPU\n" in call(capsys, *by_memory)[1]
    assert " for 1b on 1 × 24.0 GiB GPU\n" in call(capsys, *first)[2]
    Path("zerokit-plan/plan.yaml").write_text("request: [")
    assert "zerokit-plan: replaces a plan that cannot be read" in call(capsys, *first)[2]


@pytest.mark.parametrize("name", ["ds_config.json", "ds_config.trainer.json", "accelerate.yaml", "plan.yaml"])
def test_a_plan_replaces_no_file_that_is_not_a_plans(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    planned = ("plan", "--params", "7b", "--method", "lora", "--gpus", "1", "--gpu", "h200", "--out", "ex")
    Path("ex").mkdir()
    Path("ex", name).write_text("mine: 1\n")
    code, out, err = call(capsys, *planned)
    assert code == 2 and out == "" and [path.name for path in Path("ex").iterdir()] == [name]
    assert f"--out ex: holds {name}, which no plan wrote and this one would replace; move it away" in err
    assert Path("ex", name).read_text() == "mine: 1\n"
    Path("ex", name).rename("ex/mine")
    assert call(capsys, *planned)[0] == call(capsys, *planned, "--seq-len", "512")[0] == 0


def test_a_plan_removes_what_the_one_that_it_replaces_wrote(capsys: pytest.CaptureFixture[str]) -> None:
    planned = ("plan", "--params", "8b", "--gpus", "16", "--gpu", "h200", "--out", "p")
    for more in ((), ("--pp", "2"), ()):  # a pipeline has no file for Accelerate
        assert call(capsys, *planned, *more)[0] == 0
        assert Path("p/accelerate.yaml").exists() == (not more)


def test_a_plan_for_cpu_ranks_is_named_by_them(capsys: pytest.CaptureFixture[str]) -> None:
    job = ("plan", "--model", "gpt2", "--device", "cpu", "--gpus", "2")
    whole = call(capsys, *job, "--method", "lora", "--explain")[1]
    assert "  - required beside the tensors: 1 GiB of process and room for an allocator" in whole
    _, out, _ = call(capsys, *job, "--global-batch", "8", "--explain")
    assert "global batch 8: given" in out
    assert re.search(
        r"replaces the plan of .* for gpt2 on 2 CPU ranks\n", call(capsys, *job, "--zero", "2")[2]
    )


@pytest.mark.slow
def test_a_plan_that_fails_names_the_one_that_a_launch_would_take(capsys: pytest.CaptureFixture[str]) -> None:
    fails = ("plan", "--model", "llama-3.1-70b", "--gpus", "1", "--gpu", "t4", "--host-ram", "16GiB")
    code, _, err = call(capsys, *fails)
    assert code == 3 and "still holds" not in err
    assert call(capsys, "plan", "--params", "7b", "--method", "lora", "--gpus", "1", "--gpu", "h200")[0] == 0
    broken = ("plan", "--gpus", "1", "--", "broken.py")
    Path("broken.py").write_text("import transformers\nraise ValueError('broken')\n")
    assert "still holds" not in call(capsys, "plan", "--model", "llama-3.1-8bb")[2]
    for arguments, exit_code in ((fails, 3), (broken, 2)):
        code, _, err = call(capsys, *arguments)
        assert code == exit_code
        assert "zerokit-plan still holds the plan of " in err and "for LoRA of 7b on 1 × h200" in err
        assert "which `zerokit launch` would take" in err
    Path("zerokit-plan").rename("other")
    _, _, err = call(capsys, *fails, "--out", "other")
    assert "other still holds" in err and "which `zerokit launch --plan other` would take" in err
    Path("other").rename("zerokit-plan")
    Path("train.py").write_text("import deepspeed\ndeepspeed.initialize(config='ds.json')\n")
    _, _, err = call(capsys, "emit", "sbatch", "--accept-mismatch", "train.py")
    assert "for LoRA of 7b on 1 × h200" in err


@pytest.mark.parametrize("of_choice", [True, False])
def test_of_the_rehearsals_the_one_of_the_plan_is_marked(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, of_choice: bool
) -> None:
    result = zerokit.plan(model="gpt2", gpus=2, gpu="t4")
    strategies = (result.alternatives[0].strategy, *([result.chosen.strategy] if of_choice else []))
    script = ScriptProfile(
        name="train.py", command="",
        rehearsed=tuple(
            RehearsedStrategy(strategy=one, phases={"forward": GIB}, min_vram_bytes=2 * GIB, components={})
            for one in strategies
        ),
    )  # fmt: skip
    records = tuple(
        RehearsalRecord(strategy=one, seconds=1.0, peak_allocated_bytes=GIB, min_vram_bytes=2 * GIB,
                        step_seconds=1.0, stopped=None)
        for one in strategies
    )  # fmt: skip
    planned = replace(result, script=script, rehearsals=records)
    monkeypatch.setattr("zerokit.script_planner.plan_script", lambda *_, **__: planned)
    Path("train.py").touch()
    out = call(capsys, "plan", "--gpus", "2", "--gpu", "t4", "--", "train.py")[1]
    said = " ".join(out.partition("Rehearsed: train.py")[2].split())
    assert f"- {strategy_words(strategies[0])}: 2.0 GiB" in said
    assert said.count("- this plan: ") == int(of_choice)
    assert (f"- this plan: {strategy_words(result.chosen.strategy)}: 2.0 GiB" in said) is of_choice


def test_of_many_rehearsals_the_first_screen_has_that_of_the_plan(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And one that was stopped: why is worth knowing."""
    result = zerokit.plan(model="gpt2", gpus=2, gpu="t4")
    chosen = result.chosen.strategy
    others = [
        replace(chosen, settings=replace(chosen.settings, micro_batch=64 + number)) for number in range(5)
    ]
    rehearsed = RehearsedStrategy(
        strategy=chosen, phases={"forward": GIB}, min_vram_bytes=2 * GIB, components={}
    )
    first = RehearsalRecord(strategy=chosen, seconds=1.0, peak_allocated_bytes=GIB, min_vram_bytes=2 * GIB,
                            step_seconds=None, stopped=None)  # fmt: skip
    records = [first, *(replace(first, strategy=one, min_vram_bytes=(3 + number) * GIB)
                        for number, one in enumerate(others[1:]))]  # fmt: skip
    records.append(replace(first, strategy=others[0], min_vram_bytes=None, stopped="no answer"))
    script = ScriptProfile(name="train.py", command="", rehearsed=(rehearsed,))
    planned = replace(result, script=script, rehearsals=tuple(records))
    monkeypatch.setattr("zerokit.script_planner.plan_script", lambda *_, **__: planned)
    Path("train.py").touch()
    words = ("plan", "--gpus", "2", "--gpu", "t4")
    shown, explained = (
        [line.strip() for line in call(capsys, *words, *more, "--", "train.py")[1]
         .partition("Rehearsed: train.py")[2].partition("\nNext")[0].splitlines() if line.startswith("  - ")]
        for more in ((), ("--explain",))
    )  # fmt: skip
    assert shown[0].startswith("- this plan: ") and "micro-batch 64" in shown[1]
    assert shown[2:3] == ["- 4 others: 3.0 GiB to 6.0 GiB required (--explain)"]
    assert sum("micro-batch 6" in line for line in explained) == 5


def test_a_page_that_is_not_written_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("plan", "--model", "llama-3.1-70b", "--gpus", "1", "--gpu", "t4", "--html", "plan.html")
    code, _, err = call(capsys, *words)
    assert code == 3 and "--html plan.html: not written, there is no plan to show" in err
    assert not Path("plan.html").exists()


@pytest.mark.slow
@pytest.mark.parametrize("given", [(), ("--global-batch", "64")])
def test_a_choice_that_only_may_fit_stands_beside_one_that_surely_does(
    given: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    job = ("plan", "--params", "1b", "--gpus", "2", "--gpu", "rtx-4090", *given)
    code, out, _ = call(capsys, *job)
    assert code == 0 and "May fit: " in out and out.count("\n") <= 24
    sure = re.search(r"Surely fits, ([\d.]+)% slower, .*?plan with\s(--.*?)\nStep: ", out, re.DOTALL)
    assert sure is not None
    unsure_plan, sure_plan = (as_json(capsys, *job, *more)["chosen"]["estimate"]
                              for more in ((), sure[2].split()))  # fmt: skip
    code, sure_out, err = call(capsys, *job, *sure[2].split())
    assert code == 0 and "Fits: " in sure_out and "is given 2 times" not in err
    slower = sure_plan["step_seconds"] / unsure_plan["step_seconds"] - 1
    assert slower == pytest.approx(float(sure[1]) / 100, abs=0.001)
    for top in ("1", "20"):  # the choice does not depend on how many plans are shown
        assert as_json(capsys, *job, "--top", top)["chosen"]["estimate"] == unsure_plan


@pytest.mark.parametrize("columns", range(68, 96, 4))
def test_an_option_to_copy_stands_in_one_line(
    columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    out = call(capsys, "plan", "--params", "1b", "--gpus", "2", "--gpu", "rtx-4090")[1]
    assert "Surely fits" in out and not [line for line in out.splitlines() if line.endswith("-")]


def test_memory_in_detail_adds_up_to_what_is_required(capsys: pytest.CaptureFixture[str]) -> None:
    """Traced and in closed form, on one node and on two, with expandable segments and without."""
    for job in (("--model", "llama-3.1-8b", "--gpus", "8", "--gpu", "h100-sxm-80gb"),
                ("--params", "3b", "--gpus", "16", "--nodes", "2", "--gpu", "h200", "--host-ram", "500GiB"),
                ("--model", "llama-3.1-8b", "--gpus", "8", "--gpu", "mi300x")):  # fmt: skip
        out = call(capsys, "plan", *job, "--explain")[1]
        table = out.split("Memory per GPU (worst rank)\n")[1].split("\n\n")[0]
        _, around, total = re.split(r" +-{12}\n", table)
        names = [line.strip().split("  ")[0] for line in around.splitlines()]
        assert names[:4] == [names[0], "reserved beyond allocated", "context and libraries", "NCCL buffers"]
        required, available, headroom, *_ = map(_gib, total.splitlines())
        assert sum(map(_gib, around.splitlines())) == pytest.approx(required, abs=0.03)
        assert headroom == pytest.approx(available - required, abs=0.02)
        host, sums = re.split(r" +-{12}\n", out.split("Host memory per node\n")[1].split("\n\n")[0])
        assert sum(map(_gib, host.splitlines())) == pytest.approx(_gib(sums.splitlines()[0]), abs=0.03)
        assert "required by 8 ranks" in sums and ("--host-ram" in job) == ("available per node" in sums)


def _gib(row: str) -> float:
    size, unit = re.search(r"([\d.,]+) ([MG])iB", row).groups()  # type: ignore[union-attr]
    return float(size.replace(",", "")) / (1024 if unit == "M" else 1)


def test_a_plan_with_offload_says_what_host_memory_it_assumes(capsys: pytest.CaptureFixture[str]) -> None:
    """On its first screen, as whether it fits may depend on that."""
    job = ("plan", "--model", "llama-3.1-70b", "--gpus", "16", "--nodes", "2", "--gpu", "h100-sxm-80gb",
           "--seq-len", "4096", "--global-batch", "64")  # fmt: skip
    code, out, _ = call(capsys, *job)
    assert code == 0 and "offload" in out and " GiB per node of 2,048 GiB assumed: " in out
    assert out.count("\n") <= 24
    assert " assumed: " not in call(capsys, *job, "--host-ram", "1500GiB")[1].partition("Assumed")[0]
    without = call(capsys, "plan", "--params", "7b", "--method", "lora", "--gpus", "1", "--gpu", "h200")[1]
    assert " assumed: " not in without.partition("Assumed")[0]
