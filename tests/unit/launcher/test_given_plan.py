"""A file that is named as a plan and is none: the message says what it is, and what to do with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.plans import write_plan
from zerokit.errors import FileInputError
from zerokit.fields import as_options
from zerokit.launcher.given_plan import choose_plan, read_plan, read_plan_file

ACCELERATE = "compute_environment: LOCAL_MACHINE\ndistributed_type: DEEPSPEED\nnum_processes: 2\n"
MAKES_PLAN = "make a plan with `zerokit plan --gpus N --gpu GPU -- SCRIPT`"


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("default_config.yaml", ACCELERATE, f"is Accelerate's YAML, not a plan: {MAKES_PLAN} and launch "
         "that, or run it as it is: `accelerate launch --config_file default_config.yaml SCRIPT`"),
        (
            "named.yaml",
            f"{ACCELERATE}deepspeed_config:\n  deepspeed_config_file: ds.json\n",
            f"{MAKES_PLAN}, or run the JSON that it names: `zerokit launch --deepspeed ds.json SCRIPT`",
        ),
        ("ds.json", '{"zero_optimization": {"stage": 2}}', "`zerokit launch --deepspeed ds.json SCRIPT`"),
        ("recipe.yaml", "model: gpt2\ngpus: 8\n", "`zerokit plan --recipe recipe.yaml` makes one"),
        ("hostfile", "node1 slots=8\n", "`zerokit launch --plan DIR --hostfile hostfile SCRIPT` uses both"),
        ("args.yaml", "output_dir: x\nlearning_rate: 0.1\n", f"has a Trainer's arguments, and is not a plan: "
         f"{MAKES_PLAN}"),
        ("train.py", "def main(): ...\n", "train.py: is a Python script, not a plan"),
        ("other.yaml", "x: 1\n", "other.yaml:1:1: is not a plan: expected `schema: zerokit.planfile/1`"),
    ],
)  # fmt: skip
def test_what_stands_in_place_of_a_plan_is_said(
    name: str, text: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).write_text(text)
    with pytest.raises(FileInputError) as refused:
        read_plan(name)
    message = as_options(refused.value.marked)
    assert message.startswith(f"{name}:") and said in message


def test_a_file_of_a_plan_names_its_folder(tmp_path: Path) -> None:
    folder = write_plan(tmp_path / "plan")
    assert read_plan_file(str(folder)).folder == folder
    with pytest.raises(FileInputError, match=f"is one file of a plan: name its folder, {folder}"):
        read_plan_file(str(folder / "ds_config.json"))


NONE: dict[str, object] = {"plan": None, "recipe": None, "deepspeed": None, "no_plan": False}


def chosen(*arguments: str, **named: object) -> tuple[str | None, list[str]]:
    """The plan, and what was said."""
    said: list[str] = []
    options = {**NONE, **named}
    plan = choose_plan(
        **options,  # type: ignore[arg-type]
        overrides=(), arguments=arguments, plan_recipe=lambda *given: None, say=said.append,
    )  # fmt: skip
    return plan, said


@pytest.mark.parametrize(
    ("arguments", "named", "said"),
    [
        ((), {}, ["no plan is used: there is no zerokit-plan here; `zerokit plan` makes one"]),
        ((), {"no_plan": True}, []),  # was asked for
        (("--deepspeed_config=ds.json",), {}, []),  # the script has one of its own
        ((), {"deepspeed": "ds.json"}, []),
    ],
)
def test_a_launch_without_a_plan_says_so_where_nobody_asked_for_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    named: dict[str, object],
    said: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    plan, lines = chosen(*arguments, **named)
    assert (plan, len(lines)) == (None, len(said))
    assert all(line.startswith(start) for line, start in zip(lines, said, strict=True))


def test_the_plan_found_here_is_taken_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_plan(tmp_path / "zerokit-plan")
    plan, (line,) = chosen()
    assert plan == "zerokit-plan"
    assert line.startswith("plan: zerokit-plan, found here")
