"""How scripts take their configuration, and the configuration they are given."""

from __future__ import annotations

from pathlib import Path

import pytest

from zerokit.errors import InputError
from zerokit.launcher.command import script_options
from zerokit.script.arguments import ScriptOptions
from zerokit.script.reader import read_script

SCRIPTS = Path(__file__).parents[2] / "scripts"

SOURCES = {
    "raw": "import deepspeed, argparse\np = argparse.ArgumentParser()\ndeepspeed.add_config_arguments(p)\n"
    "deepspeed.initialize(args=p.parse_args())\n",
    "raw own option": "import deepspeed, argparse\np = argparse.ArgumentParser()\n"
    "p.add_argument('--deepspeed_config')\ndeepspeed.initialize(config=p.parse_args().deepspeed_config)\n",
    "accelerate": "from accelerate import Accelerator\na = Accelerator()\n",
    "accelerate module": "import accelerate\na = accelerate.Accelerator()\n",
    "trainer": "from transformers import Trainer, TrainingArguments\n",
    "trainer trl": "from trl import SFTTrainer, SFTConfig\n",
    "trainer hf parser": "from transformers import HfArgumentParser, Seq2SeqTrainer\n",
    "none": "print('hello')\n",
    "none fixed": "import deepspeed\ndeepspeed.initialize(config={'train_batch_size': 8})\n",
}


@pytest.mark.parametrize("name", SOURCES)
def test_styles(tmp_path: Path, name: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(SOURCES[name])
    assert read_script(script, None).style == name.split()[0]


@pytest.mark.parametrize(
    ("file", "style"), [("raw.py", "raw"), ("accelerated.py", "accelerate"), ("trainer.py", "trainer")]
)
def test_example_scripts(file: str, style: str) -> None:
    assert read_script(SCRIPTS / file, None).style == style


def test_the_parser_may_stand_in_another_file(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "__init__.py").write_text("from .options import parse\n")
    (tmp_path / "lib" / "options.py").write_text(SOURCES["raw own option"])
    script = tmp_path / "train.py"
    script.write_text("from lib import parse\nimport train\nparse()\n")  # a cycle, too
    assert read_script(script, None).style == "raw"


def test_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "train.py").write_text(SOURCES["accelerate"])
    monkeypatch.chdir(tmp_path)
    assert read_script(None, "pkg.train").style == "accelerate"
    with pytest.raises(InputError, match="no such module"):
        read_script(None, "pkg.nothing")


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("pkg.script.train", "pkg.scripts.train"),
        ("pkg.scripts.trian", "pkg.scripts.train"),
        ("kpg.scripts.train", "pkg.scripts.train"),
        ("pkg.scripts.train.main", None),
        ("pkgg", "pkg"),
        ("jsonn.tool", "json.tool"),  # installed
        ("pkg..train", None),
    ],
)
def test_the_module_that_was_meant_is_named(
    typed: str, meant: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pkg" / "scripts").mkdir(parents=True)
    for name in ("__main__.py", "scripts/train.py"):
        (tmp_path / "pkg" / name).write_text(SOURCES["accelerate"])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as refused:
        read_script(None, typed)
    hint = f"; did you mean -m {meant}?" if meant else ""
    assert str(refused.value).endswith(f"or among the installed packages{hint}")


@pytest.mark.parametrize("data", [b"\xff\xfe", b"def", b"\0", b"(" * 5000])
def test_what_is_not_python(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "train.py").write_bytes(data)
    facts = read_script(tmp_path / "train.py", None)
    assert facts.style == "none" and facts.unreadable


def test_no_script(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_script(tmp_path / "none.py", None)


def options(name: str, *arguments: str, tmp: Path) -> list[str]:
    (tmp / "t.py").write_text(SOURCES[name])
    facts = read_script(tmp / "t.py", None)
    return script_options(ScriptOptions.read(facts, facts.style, arguments), Path("/c.json"))


def test_options_for_raw_scripts(tmp_path: Path) -> None:
    assert options("raw", tmp=tmp_path) == ["--deepspeed", "--deepspeed_config", "/c.json"]
    assert options("raw own option", tmp=tmp_path) == ["--deepspeed_config", "/c.json"]
    assert options("raw", "--deepspeed_config", "mine", tmp=tmp_path) == ["--deepspeed"]
    assert options("raw", "--deepspeed_config=mine", "--deepspeed", tmp=tmp_path) == []
    assert options("accelerate", tmp=tmp_path) == []


_ADDS = "import deepspeed\ndeepspeed.add_config_arguments(p)\n"
OWN_CONFIGURATION = {
    "DeepSpeedExamples' cifar": (_ADDS + "deepspeed.initialize(args=a, config=c)\n", "t.py:3: config=c"),
    "a literal, no options": ("import deepspeed\ndeepspeed.initialize(config={})\n", "t.py:2: config={}"),
    "the option's file": (_ADDS + "deepspeed.initialize(config=args.deepspeed_config)\n", None),
    "the option's file, read by the script": (
        _ADDS + "c = json.load(open(vars(a)['deepspeed_config']))\ndeepspeed.initialize(config=c)\n", None),
    "one call of two": (_ADDS + "deepspeed.initialize(config=c)\ndeepspeed.initialize(args=a)\n", None),
    "none": (_ADDS + "deepspeed.initialize(args=a)\n", None),
}  # fmt: skip


@pytest.mark.parametrize("name", OWN_CONFIGURATION)
def test_a_configuration_that_the_script_makes_itself_is_found(tmp_path: Path, name: str) -> None:
    source, where = OWN_CONFIGURATION[name]
    (tmp_path / "t.py").write_text(source)
    facts = read_script(tmp_path / "t.py", None)
    assert facts.own_configuration == (where and f"{tmp_path}/{where}")
    if where:
        assert script_options(ScriptOptions.read(facts, "raw", ()), Path("/c.json")) == []
    if name == "a literal, no options":
        assert facts.style == "none" and "deepspeed.initialize one of its own" in facts.why


def test_a_package_installed_from_a_checkout_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DeepSpeed-Chat's step 3 makes its engines in its package ``dschat``."""
    (tmp_path / "work" / "chat7").mkdir(parents=True)
    (tmp_path / "work" / "chat7" / "__init__.py").write_text("")
    (tmp_path / "work" / "chat7" / "engine.py").write_text(
        "import deepspeed\ndeepspeed.initialize(config=c)\n"
    )
    (tmp_path / "t.py").write_text(_ADDS + "from chat7.engine import Engine\n")
    monkeypatch.syspath_prepend(tmp_path / "work")
    assert "engine.py:2" in str(read_script(tmp_path / "t.py", None).own_configuration)


_HF = "from transformers import HfArgumentParser\nHfArgumentParser(A).parse_args_into_dataclasses()\n"
_OWN_PARSER = "p.add_argument('--local_rank', type=int)\n"
LOCAL_RANK = {
    "its own option": (_OWN_PARSER, "--lr 1", True),
    "its own option, given by the user": (_OWN_PARSER, "--local_rank=3", False),
    "its own option, other spelling": ("p.add_argument('--local-rank')\n", "", False),
    "a file that argparse reads": (_OWN_PARSER, "settings.json", True),
    "a subcommand": (_OWN_PARSER + "p.add_subparsers()\n", "train", False),
    "deepspeed's arguments alone": (SOURCES["raw"], "", False),
    "a Trainer": (_HF, "--output_dir o", False),
    "a Trainer's file of arguments": (_HF, "args.json", False),
    "its own dataclass": (_HF + "class A:\n    local_rank: int = -1\n", "--lr 1", True),
    "its own dataclass from a file": (_HF + "class A:\n    local_rank: int = -1\n", "a.yaml --lr 1", False),
    "nothing that parses": ("print('hello')\n", "train", False),
}  # fmt: skip


@pytest.mark.parametrize("name", LOCAL_RANK)
def test_local_rank_goes_to_scripts_that_declare_it(tmp_path: Path, name: str) -> None:
    source, arguments, takes = LOCAL_RANK[name]
    (tmp_path / "t.py").write_text(source)
    assert read_script(tmp_path / "t.py", None).takes_local_rank(arguments.split()) is takes


@pytest.mark.parametrize("name", ["train_lora.py", "examples/train_lroa.py", "train_lroa.py"])
def test_a_script_that_is_not_there_is_looked_for(tmp_path: Path, name: str) -> None:
    script = tmp_path / "examples" / "train_lora.py"
    script.parent.mkdir()
    script.write_text("")
    with pytest.raises(InputError) as refused:
        read_script(tmp_path / name, None)
    assert str(refused.value).endswith(f"there is no such file; did you mean {script}?")
