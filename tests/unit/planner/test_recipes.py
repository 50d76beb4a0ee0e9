"""Recipes: every committed file by itself, the loader's refusals, and the commands."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path
from typing import Any

import pytest

import zerokit
from tests.support.caches import own_cache_but_traces
from tests.support.played_rehearsals import play
from tests.support.ranks import write_script
from tests.support.scripts_read import TRAINER
from zerokit import planner, resources
from zerokit.catalog import gpus, models
from zerokit.cli import run
from zerokit.cli.plan import command as plan_command
from zerokit.errors import FileInputError, InputError
from zerokit.fields import as_options
from zerokit.planner import recipes
from zerokit.planner.documents import STRATEGY_FIELDS
from zerokit.planner.options import OPTIONS
from zerokit.strictload import parse_yaml

NAMES = recipes.names()


@pytest.mark.parametrize("name", NAMES)
def test_recipe_reads_strictly_and_names_what_exists(name: str) -> None:
    recipe = recipes.load(name)
    assert recipe.name == name and recipe.title and recipe.description
    if "gpu" in recipe.request:
        gpu = gpus.lookup(recipe.request["gpu"])
        assert recipe.request.get("precision", "bf16") in ("fp32", *gpu.peak_flops)
    if "model" in recipe.request:
        models.lookup(recipe.request["model"])


def test_there_are_enough_recipes_over_the_whole_range() -> None:
    assert len(NAMES) >= 30 and "cpu-demo" in NAMES
    requests = [recipes.load(name).request for name in NAMES]
    assert {request.get("method", "full") for request in requests} == {"full", "lora", "qlora"}
    assert max(request.get("nodes", 1) for request in requests) >= 8
    assert len({json.dumps(dict(request), sort_keys=True) for request in requests}) == len(NAMES)


def test_every_file_in_the_folder_is_a_recipe() -> None:
    files = [
        path for path in resources.folder("recipes").iterdir() if not path.name.startswith((".", "README"))
    ]
    assert sorted(path.name for path in files) == sorted(f"{name}.yaml" for name in NAMES)


@pytest.mark.parametrize(
    "name",
    ["../x", "/etc/passwd", "a/b", "", ".", "..", "-x", "A", "cpu-demo\n", "cpu-demo\x00", "x" * 300, "~root",
     "cpu-demo.yaml/../../x", "\u0661"],
)  # fmt: skip
def test_names_that_break_the_rule_open_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(*arguments: object) -> Any:
        raise AssertionError(f"opened {arguments}")

    monkeypatch.setattr(recipes, "load_yaml", opened)
    with pytest.raises(InputError):
        recipes.load(name)


def test_links_and_pipes_in_the_folder_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = tmp_path / "secret.yaml"
    secret.write_text("title: secret\nparams: 1b\n")
    folder = tmp_path / "recipes"
    folder.mkdir()
    (folder / "link.yaml").symlink_to(secret)
    os.mkfifo(folder / "pipe.yaml")
    (folder / "zero.yaml").symlink_to("/dev/zero")
    monkeypatch.setattr(resources, "folder", lambda kind: folder)
    for name in ("link", "pipe", "zero"):
        with pytest.raises(InputError):
            recipes.load(name)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("title: t\nmodel: m\ngpuss: 8\n", "x.yaml:3:1: unknown key 'gpuss'; did you mean 'gpus'?"),
        ("title: t\nmodel: m\nseq-len: 8\n", "x.yaml:3:1: unknown key 'seq-len'; did you mean 'seq_len'?"),
        ("title: t\nmodel: m\nseq_lenght: 8\n", "unknown key 'seq_lenght'; use seq_len: TOKENS"),
        ("titel: t\nmodel: m\n", "unknown key 'titel'; did you mean 'title'?"),
        ("title: t\nmodel: m\nseqlen: 8\n", "unknown key 'seqlen'; use seq_len: TOKENS"),
        ("title: t\nmodel: m\nkv_cache: true\n", "unknown key 'kv_cache'; use inference: true"),
        ("title: t\nmodel: m\noutput: d\n", "unknown key 'output'; use --out DIR"),
        (
            "title: t\nmodel: m\nbatch_size: 8\n",
            "use micro_batch: N (sequences per GPU) or global_batch: N (per optimizer step, all GPUs)",
        ),
        (
            "title: t\nmodel: m\nint4: true\n",
            "method: qlora to train, or inference: true with quant: int4",
        ),
        ("title: t\nmodel: m\nzero: 4\n", "x.yaml:3:1: zero: 4; use 0, 1, 2 or 3"),
        ("title: t\nmodel: m\nmethod: dora\n", "x.yaml:3:1: method: 'dora'; use one of full, lora, qlora"),
        ("title: t\nmodel: m\nvram: 80\n", "x.yaml:3:1: vram: a unit is missing"),
        ("title: t\nparams: 70bb\n", "x.yaml:2:1: params: unknown suffix"),
        ("title: t\nmodel: m\ngpus: true\n", "x.yaml:3:1: gpus: expected a number"),
        ("title: t\nmodel: m\nseq_len: 0.5\n", "x.yaml:3:1: seq_len"),
        ("title: t\nmodel: m\nparams: 7b\n", "x.yaml:3:1: model and params"),
        ("title: t\ngpus: 8\n", "model or params is missing"),
        ("model: m\n", "title is missing"),
        ("title: t\nmodel: m\ngpus: 8\nnodes: 3\n", "x.yaml:4:1: 8 GPUs cannot be divided over 3 nodes"),
        ("title: t\nmodel: m\nexpect: {strategy: {zero: 1}}\n", "unknown key 'zero'; use engine, zero_stage"),
        ("title: t\nmodel: m\nexpect: {prediction: {peak_allocated_gib: x}}\n", "must be a number"),
        ("title: t\nmodel: m\nexpect: {speed: 1}\n", "unknown key 'speed'"),
        ("- a\n", "a recipe is a mapping"),
        ("title: t\nmodel: m\nmodel: n\n", "x.yaml:3:1: duplicate key"),
    ],
)
def test_wrong_recipes_name_the_location_and_the_fix(text: str, message: str) -> None:
    with pytest.raises(FileInputError) as caught:
        recipes.parse_recipe(parse_yaml(text, "x.yaml"))
    assert message in str(caught.value)


def test_check_and_plan_name_a_key_as_a_recipe_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("job.yaml").write_text("title: t\nmodel: gpt2\ngpu: h200\nnum_gpus: 8\n")
    for command in (["check", "job.yaml"], ["plan", "--recipe", "job.yaml"]):
        assert run(command) == 2
        said = " ".join("".join(capsys.readouterr()).split())
        assert "unknown key 'num_gpus'; use gpus: N" in said and "⟨" not in said


def test_arguments_are_those_of_plan() -> None:
    document = parse_yaml(
        "title: t\nmodel: m\nseq_len: 4096\nlora_targets: [q_proj, v_proj]\ninference: true\nvram: 24GiB\n",
        "x.yaml",
    )
    assert recipes.parse_recipe(document).arguments() == [
        "--model", "m", "--seq-len", "4096", "--lora-targets", "q_proj,v_proj", "--inference",
        "--vram", "24GiB",
    ]  # fmt: skip


def test_a_recipe_can_say_all_that_plan_takes() -> None:
    taken = {name for option in plan_command.params for name in option.opts if name.startswith("--")}
    beside = {
        "--recipe",
        "--from",
        "--out",
        "--top",
        "--json",
        "--explain",
        "--quiet",
        "--html",
        "--rehearsal-seconds",
        "--against",
        "--unconfined",
        "--no-cache",
        "--dry-run",
    }
    assert {option.option for option in OPTIONS} == taken - beside
    text = "title: t\nparams: 7b\noverlap_comm: off\nreduce_bucket: 2e8\npipeline_module: false\n"
    recipe = recipes.parse_recipe(parse_yaml(text, "x.yaml"))
    assert recipe.arguments() == ["--params", "7b", "--overlap-comm", "off", "--reduce-bucket", "200000000.0"]


@pytest.mark.parametrize("source", ["zerokit-plan", "zerokit-plan/plan.yaml"])
def test_a_written_plan_is_planned_again_with_overrides(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    first = zerokit.plan(params="1b", gpus=2, gpu="a100-40gb", network="25GB", zero=2, overlap_comm="off",
                         reduce_bucket="1e8", out="zerokit-plan").chosen  # fmt: skip
    again = zerokit.plan(recipe=source).chosen
    assert again.deepspeed_config == first.deepspeed_config
    other = planner.plan({}, recipe=source, overrides=("gpus=4", "zero=3")).chosen
    assert (other.zero_stage, other.data_parallel) == (3, 4)
    zero = other.deepspeed_config["zero_optimization"]
    assert (zero["reduce_bucket_size"], zero["overlap_comm"]) == (100_000_000, False)


def test_overrides_need_a_recipe(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "--params", "1b", "gpus=4"]) == 2
    assert "only with --recipe" in capsys.readouterr().err


@pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="DeepSpeed is not installed")
def test_launch_takes_overrides_before_the_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("print(1)\n")
    common = ["launch", "--recipe", "cpu-demo", "--device", "cpu", "--dry-run"]
    assert run([*common, "gpus=4", "zero=1", "train.py", "gpus=5"]) == 0
    shown = capsys.readouterr().out
    assert "--num_accelerators=4" in shown and shown.rstrip().endswith("train.py gpus=5")
    assert run([*common, "gpuss=3", "train.py"]) == 2
    assert "override 'gpuss=3'" in capsys.readouterr().err


def test_overrides_replace_add_and_remove() -> None:
    recipe = recipes.load("llama-3.1-8b-full-8x-h100")
    changed = recipes.with_overrides(
        recipe, ["gpus=16", "nodes=2", "seq-len=4096", "vram=24GiB", "global_batch="]
    )
    assert changed.request["gpus"] == 16 and changed.request["seq_len"] == 4096
    assert "gpu" not in changed.request and changed.request["vram"] == "24GiB"
    assert "global_batch" not in changed.request and changed.expect == {}
    assert recipes.with_overrides(recipe, []) is recipe
    assert "model" not in recipes.with_overrides(recipe, ["params=7b"]).request


@pytest.mark.parametrize(
    "wrong", ["gpus", "gpuss=8", "zero=4", "=3", "gpus=8\nnodes=3", "gpus: 8", "gpus=!!python/x"]
)
def test_wrong_overrides(wrong: str) -> None:
    with pytest.raises(InputError):
        recipes.with_overrides(recipes.load("llama-3.1-8b-full-8x-h100"), [wrong])


def test_a_plan_file_is_a_recipe(tmp_path: Path) -> None:
    from zerokit.emit import plan_file

    chosen = {
        "zero_stage": 3, "data_parallel": 8, "tensor_parallel": 1, "micro_batch": 1,
        "gradient_accumulation": 4, "precision": "bf16", "deepspeed_config": {},
    }  # fmt: skip
    path = plan_file.write(tmp_path, {"params": "70b", "gpus": "8", "seq-len": "4096", "gpu": None}, chosen)
    assert dict(recipes.load_any(str(path)).request) == {"params": "70b", "gpus": "8", "seq_len": "4096"}


def test_own_files_are_read_by_path(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("title: mine\nparams: 7b\n")
    assert recipes.load_any(str(path)).title == "mine"
    assert recipes.load_any("cpu-demo").name == "cpu-demo"
    with pytest.raises(InputError, match="there is no file or recipe"):
        recipes.load_any(str(tmp_path / "absent.yaml"))


def test_differences_within_and_beyond_tolerance() -> None:
    document = parse_yaml(
        "title: t\nparams: 7b\nexpect:\n"
        "  strategy: {zero_stage: 3}\n  prediction: {peak_allocated_gib: 40.0}\n"
    )
    recipe = recipes.parse_recipe(document)
    chosen = {
        "zero_stage": 3,
        "estimate": {"peak_allocated_bytes": int(40.3 * 2**30), "host_bytes_per_node": 0},
    }
    assert recipes.differences(recipe, chosen) == []
    chosen = {
        "zero_stage": 2,
        "estimate": {"peak_allocated_bytes": (44 * 2**30), "host_bytes_per_node": 0},
    }
    assert [text.split(":")[0] for text in recipes.differences(recipe, chosen)] == [
        "zero_stage", "peak_allocated_gib",
    ]  # fmt: skip


def test_a_misspelt_file_is_answered_with_the_one_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "300")
    (tmp_path / "my-job.yaml").write_text("title: t\nrequest: {params: 20m}\n")
    for name, meant in (
        ("my-jbo.yaml", "my-job.yaml"),
        (f"{tmp_path}/my-jbo.yaml", f"{tmp_path}/my-job.yaml"),
        ("cpu-dmeo.yaml", "cpu-demo"),
    ):
        said = f"there is no file or recipe '{name}'; did you mean {meant}?"
        assert run(["recipes", "check", name]) == 2
        assert f"{name}: {said}\n" in capsys.readouterr().out
        assert run(["plan", "--recipe", name]) == 2
        assert f"zerokit: {said}\n" in capsys.readouterr().err
    assert run(["recipes", "show", "cpu-demo.yaml"]) == 0


def test_list_show_copy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["recipes", "list"]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in NAMES)
    assert run(["recipes", "list", "--json"]) == 0
    assert [item["name"] for item in json.loads(capsys.readouterr().out)["recipes"]] == NAMES
    assert run(["recipes", "show", "cpu-demo", "gpus=4"]) == 0
    assert "zerokit plan --params 20m --gpus 4" in capsys.readouterr().out
    assert run(["recipes", "show", "cpu-demos"]) == 2
    assert "did you mean cpu-demo" in capsys.readouterr().err
    assert run(["recipes", "show", "absent.yaml"]) == 2
    assert "there is no file or recipe 'absent.yaml'\n" in capsys.readouterr().err
    assert run(["recipes", "show", "cpu-demo", "seq_lenn=4"]) == 2
    assert "unknown key 'seq_lenn'; did you mean 'seq_len'?" in capsys.readouterr().err
    assert run(["recipes", "show", "cpu-demo", "seqlen=4"]) == 2
    assert "unknown key 'seqlen'; use seq_len=TOKENS" in capsys.readouterr().err
    assert run(["recipes", "copy", "cpu-demo", str(tmp_path)]) == 0
    copied = tmp_path / "cpu-demo.yaml"
    assert copied.read_text() == recipes.load("cpu-demo").path.read_text()
    assert run(["recipes", "copy", "cpu-demo", f"{tmp_path}/new/"]) == 0
    capsys.readouterr()
    assert run(["recipes", "show", f"{tmp_path}/new/cpu-demo.yaml"]) == 0
    assert "zerokit plan --params 20m --gpus 2" in capsys.readouterr().out
    copied.write_text("mine")
    assert run(["recipes", "copy", "cpu-demo", str(tmp_path)]) == 2
    assert copied.read_text() == "mine"


def test_check_holds_a_recipe_to_what_it_says_and_write_says_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "mine.yaml"
    request = "title: mine\nparams: 1b  # small\ngpus: 2\ngpu: a100-40gb\n"
    path.write_text(request)
    assert run(["recipes", "check", "./mine.yaml"]) == 2
    assert "has no expect block; `zerokit recipes check --write` fills it" in capsys.readouterr().out
    assert run(["recipes", "check", "--write", "./mine.yaml"]) == 0
    written = path.read_text()
    assert written.startswith(request)
    recipe = recipes.load_any("./mine.yaml")
    assert list(recipe.expect["strategy"]) == list(STRATEGY_FIELDS)
    assert list(recipe.expect["prediction"]) == list(recipes.EXPECTED_PREDICTION)
    assert run(["recipes", "check", "--write", "./mine.yaml"]) == 0
    assert path.read_text() == written
    assert run(["recipes", "check", "./mine.yaml"]) == 0
    peak = recipe.expect["prediction"]["peak_allocated_gib"]
    path.write_text(written.replace(f"peak_allocated_gib: {peak}", f"peak_allocated_gib: {peak * 1.02:.2f}"))
    capsys.readouterr()
    assert run(["recipes", "check", "./mine.yaml"]) == 2
    expected = float(f"{peak * 1.02:.2f}")
    assert f"peak_allocated_gib: expected {expected}, the plan has {peak}" in capsys.readouterr().out
    path.write_text(f"expect: {{strategy: {{zero_stage: 7}}}}\n{request}")
    assert run(["recipes", "check", "--write", "./mine.yaml"]) == 2
    assert path.read_text().endswith(request)
    # nothing is left behind, no plan of the user's is overwritten
    assert set(tmp_path.iterdir()) == {path, tmp_path / "cache"}


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ({}, "the recipe's --method lora: no; take it out of the recipe with method=, or change the script"),
        ({"method": "lora"}, "--method lora: no; leave --method out, or change the script"),
    ],
)
def test_a_refused_value_of_the_recipe_is_told_as_the_recipes(typed: dict[str, str], said: str) -> None:
    with (
        pytest.raises(InputError) as refused,
        recipes.named_in_refusals(typed, {"method": "lora", "seq_len": "128"}),
    ):
        raise InputError("⟨method⟩ lora: no; leave ⟨method⟩ out, or change the script")
    assert as_options(refused.value.marked) == said
    assert refused.value.field == "method" and "--" not in str(refused.value)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own_cache_but_traces(tmp_path, monkeypatch)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("is_here", [True, False])
def test_it_has_the_models_name_and_says_that_it_is_not_rehearsed(
    is_here: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    play(monkeypatch, lambda strategy, _: {"batch_rows": strategy.settings.micro_batch})
    write_script(tmp_path, TRAINER, "train.py").rename("own.py")
    pins = ("--zero", "1", "--micro-batch", "4", "--checkpointing", "none", "--rehearsal-seconds", "1")
    assert run(["plan", "--gpus", "2", "--gpu", "h200", *pins, "--", "own.py", "--seed", "3"]) == 0
    title = capsys.readouterr().out.splitlines()[0]
    if not is_here:
        Path("own.py").unlink()
    again = ("--recipe", "zerokit-plan", "gpu=a100-80gb", "--gpus", "4", "--out", "again")
    assert run(["plan", *again, "--explain"]) == 0
    first, *others = capsys.readouterr().out.splitlines()
    assert first.split(" on ")[0] == title.split(" on ")[0] and "4 × a100-80gb" in first
    text = " ".join(" ".join(others).replace("\\", " ").split())
    script = "own.py --seed 3" if is_here else "SCRIPT"
    assert "not rehearsed with own.py, as the plan was that it is made from; to do so: zerokit plan" in text
    assert f"gpu=a100-80gb --gpus 4 -- {script}" in text
    assert ("zerokit launch --plan again own.py --seed 3" in text) is is_here


def test_a_plan_without_a_script_has_no_such_note(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "--model", "gpt2", "--gpus", "2", "--gpu", "h200"]) == 0
    assert run(["plan", "--recipe", "zerokit-plan", "gpu=a100-80gb", "--explain"]) == 0
    assert "not rehearsed" not in capsys.readouterr().out
