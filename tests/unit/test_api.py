"""The library: typed functions that answer what the commands print, without torch or a second process."""

from __future__ import annotations

import dataclasses
import doctest
import importlib
import inspect
import json
import pydoc
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import zerokit
from tests.support.api_calls import DEEPSPEED, JOB, as_json
from tests.support.scripts_read import TRAINER
from zerokit import api, fields
from zerokit.cli import run
from zerokit.domain import job, trainers
from zerokit.errors import InputError, NothingFits
from zerokit.planner.options import BY_NAME, ELSEWHERE, OPTIONS, PlanOptions, normalized
from zerokit.search.engine import ANY_ENGINE, ENGINES


def words_of(options: dict[str, Any]) -> list[str]:
    """Arguments as the command line takes them."""
    return [word for name, value in options.items() for word in (BY_NAME[name].option, str(value))]


def printed(
    capsys: pytest.CaptureFixture[str], command: str, *arguments: str, **options: Any
) -> dict[str, Any]:
    """What a command prints with ``--json``."""
    run([command, *arguments, *words_of(options), "--json"])
    out, err = capsys.readouterr()
    assert out, err
    body: dict[str, Any] = json.loads(out)
    return body


def test_it_is_imported_lazily_and_lists_its_names() -> None:
    code = (
        "import sys, zerokit\n"
        "assert not {'torch', 'yaml', 'pydantic', 'click', 'zerokit.api'} & set(sys.modules)\n"
        "assert dir(zerokit) == sorted(zerokit.__all__)\n"
        "zerokit.plan(params='7b', gpus=8, gpu='h200')\n"
        "assert not {'torch', 'click', 'rich'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_results_are_what_the_commands_print(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    plan = zerokit.plan(**JOB, out="zerokit-plan")
    assert as_json(plan.to_dict()) == as_json(printed(capsys, "plan", **JOB))
    found = zerokit.estimate(**JOB, zero=3, micro_batch=2)
    assert found.to_dict() == printed(capsys, "estimate", **JOB, zero=3, micro_batch=2)
    sized = zerokit.size(params="7b", gpu="h200", method="lora", price=2.5)
    shown = printed(capsys, "size", "--price", "2.5", params="7b", gpu="h200", method="lora")
    assert as_json(sized.to_dict()) == as_json(shown)
    Path("ds.json").write_text(json.dumps(DEEPSPEED))
    checked = zerokit.check("ds.json", model="llama-3.1-8b", gpus=1, vram="8GiB")
    assert "does-not-fit" in {finding.rule for finding in checked.findings}
    shown = printed(capsys, "check", "ds.json", model="llama-3.1-8b", gpus=1, vram="8GiB")
    assert checked.to_dict() == shown
    # whether it fits is judged without what is not modelled, which is told
    quantised = DEEPSPEED | {"zero_optimization": {"stage": 3, "zero_quantized_weights": True}}
    Path("ds.json").write_text(json.dumps(quantised))
    assert not any(found.rule == "not-modelled" for found in zerokit.check("ds.json").findings)
    checked = zerokit.check("ds.json", model="llama-3.1-8b", gpus=8, gpu="h200")
    (note,) = (found for found in checked.findings if found.rule == "not-modelled")
    assert note.severity == "note" and "zero_quantized_weights" in note.message and checked.ok


def test_results_are_typed_and_frozen() -> None:
    plan = zerokit.plan(**JOB, top=3)
    assert plan.chosen.deepspeed_config["zero_optimization"]["stage"] == plan.chosen.zero_stage
    assert plan.chosen.estimate.peak_allocated_bytes == max(
        rank.peak_allocated_bytes for rank in plan.chosen.estimate.per_rank
    )
    assert len(plan.alternatives) == 2 and plan.alternatives[0].why
    for result in (plan, plan.chosen, plan.chosen.estimate, zerokit.size(params="7b", gpu="h200")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(result, dataclasses.fields(result)[0].name, None)


def test_a_plan_is_written_when_it_is_asked_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    plan = zerokit.plan(**JOB)
    assert not list(tmp_path.iterdir()) and not plan.files
    files = plan.write("there")
    assert {"deepspeed", "accelerate", "plan"} <= files.keys()
    assert zerokit.plan(recipe="there").chosen.deepspeed_config == plan.chosen.deepspeed_config


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"params": "7b", "gpus": 7, "tp": 2}, "tp"),
        ({"params": "7b", "gpus": 8, "seq_len": "x"}, "seq_len"),
        ({"params": "7b", "gpus": 8, "gpu": "nothing"}, "gpu"),
        ({"params": "7b", "gpus": 8, "precision": "int3"}, "precision"),
        ({"params": "7b", "gpus": 8, "gpu": "h200", "global_batch": 13}, "global_batch"),
    ],
)
def test_errors_name_the_argument_and_the_command_its_option(
    options: dict[str, Any], field: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(InputError) as raised:
        zerokit.plan(**options)
    assert raised.value.field == field and str(raised.value).startswith(field)
    assert "--" not in str(raised.value) and "⟨" not in str(raised.value)
    code = run(["plan", *words_of(options)])
    _, err = capsys.readouterr()
    assert code == 2 and err == f"zerokit: {fields.as_options(raised.value.marked)}\n"
    assert BY_NAME[field].option in err


@pytest.mark.parametrize(
    ("offloads", "refused", "fix"),
    [
        ({"offload_param": "cpu"}, "offload_param cpu", "leave it out"),
        ({"offload_optimizer": "cpu", "offload_param": "none"}, "offload_optimizer cpu", "leave it out"),
        (
            {"offload_optimizer": "cpu", "offload_param": "cpu"},
            "offload_optimizer cpu, offload_param cpu",
            "leave them out",
        ),
    ],
)
def test_of_two_arguments_only_what_was_given_is_refused(
    offloads: dict[str, Any], refused: str, fix: str
) -> None:
    with pytest.raises(InputError) as raised:
        zerokit.plan(model="gpt2", device="cpu", gpus=2, **offloads)
    assert str(raised.value) == f"{refused}: CPU ranks hold everything in host memory already; {fix}"
    assert raised.value.field == next(iter(offloads))


CARD: dict[str, Any] = {"model": "gpt2", "gpus": 1, "gpu": "h200"}
FILES: list[tuple[str, str, dict[str, Any]]] = [
    ("plan", "recipe", {"recipe": "none"}),
    ("plan", "recipe", {"recipe": "broken.yaml"}),
    ("plan", "out", CARD | {"out": "train.py"}),
    ("plan", "model", CARD | {"model": "none/config.json"}),
    ("plan", "script", {"script": "none.py"}),
    ("plan", "module", {"module": "no_such_module"}),
    ("estimate", "deepspeed", CARD | {"deepspeed": "none.json"}),
    ("estimate", "deepspeed", CARD | {"deepspeed": "broken.yaml"}),
    ("estimate", "deepspeed", CARD | {"deepspeed": "stage.json"}),
    ("launch", "script", {"script": "none.py"}),
    ("launch", "script", {"script": "zerokit-plan"}),
    ("launch", "script", {"script": "no-such-command"}),
    ("launch", "module", {"module": "no_such_module"}),
    ("launch", "plan", {"script": "train.py", "plan": "none"}),
    ("launch", "plan", {"script": "train.py", "plan": "broken.yaml"}),
    ("launch", "recipe", {"script": "train.py", "recipe": "broken.yaml"}),
    ("launch", "deepspeed", {"script": "train.py", "deepspeed": "none.json"}),
    ("launch", "deepspeed", {"script": "train.py", "deepspeed": "broken.yaml"}),
    ("launch", "hostfile", {"script": "train.py", "hostfile": "none"}),
    ("launch", "hostfile", {"script": "train.py", "hostfile": "broken.yaml"}),
    ("launch", "run_dir", {"script": "train.py", "run_dir": "train.py"}),
    ("rehearse", "script", {"script": "none.py"}),
    ("rehearse", "plan", {"script": "train.py", "plan": "broken.yaml"}),
    ("rehearse", "versions", {"script": "train.py", "versions": "none.txt"}),
    ("rehearse", "out", {"script": "train.py", "gpu": "h200", "out": "train.py"}),
    ("tune", "script", CARD | {"script": "none.py"}),
    ("tune", "recipe", {"script": "train.py", "recipe": "broken.yaml"}),
    ("tune", "out", CARD | {"script": "train.py", "out": "train.py"}),
]


@pytest.mark.parametrize(("function", "field", "arguments"), FILES)
def test_an_error_of_a_file_names_the_argument_that_gave_it(
    function: str, field: str, arguments: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("import deepspeed\n\ndeepspeed.initialize(config='ds_config.json')\n")
    Path("broken.yaml").write_text("a: [")
    Path("stage.json").write_text('{"train_batch_size": 1, "zero_optimization": {"stage": 7}}')
    zerokit.plan(model="gpt2", device="cpu", gpus=1, out="zerokit-plan")
    with pytest.raises(InputError) as raised:
        getattr(zerokit, function)(**arguments)
    assert raised.value.field == field, raised.value


def test_what_is_heard_of_a_launch_names_arguments_as_python_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(TRAINER)
    zerokit.plan(model="gpt2", device="cpu", gpus=1, out="zerokit-plan")
    heard: list[str] = []
    zerokit.launch("train.py", ["--output_dir", "out"], dry_run=True, say=heard.append)
    told = "\n".join(heard)
    assert "(no_plan=True runs without one)" in told and "⟨" not in told and "--no-plan" not in told


@pytest.mark.parametrize("function", ["plan", "launch", "rehearse", "tune"])
def test_the_arguments_of_a_script_are_a_list(
    function: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("")
    with pytest.raises(InputError, match="'--epochs 1': give a list of words") as raised:
        getattr(zerokit, function)("train.py", "--epochs 1")
    assert raised.value.field == "arguments"


def test_what_does_not_fit_is_an_error_with_its_own_class() -> None:
    with pytest.raises(NothingFits, match="host_ram") as raised:
        zerokit.plan(model="llama-3.1-70b", gpus=1, gpu="t4", host_ram="64GiB")
    assert "--host-ram" in fields.as_options(raised.value.marked)


def test_arguments_that_there_are_not_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"seqlen: .* use seq_len TOKENS"):
        zerokit.plan(params="7b", seqlen=4096)  # type: ignore[call-arg]
    with pytest.raises(InputError, match="against: expected a path, got 3"):
        zerokit.plan(params="7b", against=3)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="tp: check does not take it"):
        zerokit.check(tmp_path / "ds.json", tp=2)


def test_the_words_of_an_option_are_those_that_the_domain_knows() -> None:
    choices = {
        "method": job.METHODS,
        "trainer": trainers.TRAINERS,
        "loss": job.LOSSES,
        "precision": ("auto", *job.PRECISIONS),
        "engine": (*ENGINES, ANY_ENGINE),
    }
    assert {name: BY_NAME[name].metavar.split("|") for name in choices} == {
        n: list(c) for n, c in choices.items()
    }


def test_one_table_of_options() -> None:
    """Keyword arguments, options of the command line and keys of a recipe are the rows of one table."""
    names = [option.name for option in OPTIONS]
    assert list(PlanOptions.__annotations__) == names == list(BY_NAME)
    for function in (api.plan, api.estimate, api.size, api.tune):
        parameters = inspect.signature(function).parameters
        assert list(parameters)[-len(names) :] == names
        assert all(p.kind is not inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    for command in ("plan", "estimate", "size", "tune"):
        click = importlib.import_module(f"zerokit.cli.{command}").command
        assert {option.option for option in OPTIONS} <= {word for p in click.params for word in p.opts}
    assert normalized({"lora_targets": ["q_proj", "v_proj"], "overlap_comm": False, "inference": False}) == {
        "lora_targets": "q_proj,v_proj", "overlap_comm": "off",
    }  # fmt: skip


@pytest.mark.parametrize("name", ["plan", "estimate", "size", "tune"])
def test_help_explains_every_option_that_a_function_takes(name: str) -> None:
    shown = pydoc.render_doc(getattr(zerokit, name), renderer=pydoc.plaintext)
    assert "ForwardRef" not in shown and "**options" not in shown
    told = {
        line.partition(":")[0].strip(): line for line in inspect.getdoc(getattr(zerokit, name)).splitlines()
    }
    elsewhere = ELSEWHERE.get(name, {})
    for option in OPTIONS:
        text = elsewhere.get(option.name, option.help)
        assert (option.name in told) == (text is not None), option.name
        assert text is None or fields.plain(text).split(" [")[0][:40] in told[option.name]
    assert "Raises:" in shown and "⟨" not in shown


def test_selective_checkpointing_changes_nothing_where_no_scores_are_kept() -> None:
    """As ``zerokit.selective_checkpointing`` refuses a model with sdpa: there is nothing to compute again."""
    job = {"model": "llama-3.1-8b", "gpu": "h200", "gpus": 8, "zero": 1, "micro_batch": 2}
    none, selective = (
        zerokit.estimate(**job, checkpointing=kind).to_dict() for kind in ("none", "selective")
    )
    assert selective["basis"] == none["basis"] == "traced"
    for key in ("per_rank", "step_seconds", "host_bytes_per_node"):
        assert selective[key] == none[key]
    assert [note for note in selective["assumptions"] if "keeps no scores" in note]


# selective_checkpointing imports torch: tests/torch/test_selective_checkpointing.py
@pytest.mark.parametrize("name", sorted(set(zerokit.__all__) - {"__version__", "selective_checkpointing"}))
def test_every_function_is_documented(name: str) -> None:
    text = inspect.getdoc(getattr(zerokit, name)) or ""
    assert len(text.split("\n\n")) > 1, name


@pytest.mark.parametrize("module", [api, fields])
def test_examples_are_true(module: Any) -> None:
    found = doctest.testmod(module)
    assert found.attempted and not found.failed


def test_values_show_themselves_in_a_few_lines(tmp_path: Path) -> None:
    file, odd = tmp_path / "ds.json", tmp_path / "odd.json"
    file.write_text('{"train_batch_size": 8, "zero_optimization": {"stage": 2, "offload_param": {}}}')
    odd.write_text(json.dumps({"train_batch_size": 8} | {f"unknown_key_{number}": 1 for number in range(7)}))
    many = zerokit.check(odd)
    assert repr(many).splitlines()[-1] == f"  and {len(many.findings) - 5} more, in findings>"
    job: dict[str, Any] = {"params": "7b", "gpus": 4, "gpu": "h200"}
    plan = zerokit.plan(**job)
    for value, words in (
        (plan, "Plan for llama-2-7b on 4 × h200"),
        (plan.chosen, "GiB required per GPU"),
        (zerokit.estimate(**job), "Estimate of llama-2-7b: <ZeRO-0"),
        (zerokit.size(params="7b", gpu="h200"), "Fewest GPUs for llama-2-7b"),
        (zerokit.check(file), f"1 warning\n  {file}:1:"),
    ):
        assert words in repr(value) and len(repr(value)) < 700
