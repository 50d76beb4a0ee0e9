"""How scripts take their configuration, and the configuration they are given."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from zerokit.errors import InputError
from zerokit.launcher.command import script_options
from zerokit.script.adapt_config import Adapted, adapt
from zerokit.script.reader import ScriptFacts, read_script

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
    return script_options(facts.style, facts, arguments, Path("/c.json"))


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
        assert script_options("raw", facts, (), Path("/c.json")) == []


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


CONFIG: dict[str, Any] = {
    "train_batch_size": 16,
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 2,
    "gradient_clipping": 1.0,
    "fp16": {"enabled": True, "loss_scale": 0},
    "bf16": {"enabled": False},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-5, "betas": [0.9, 0.95], "eps": 1e-8}},
    "zero_optimization": {
        "stage": 3,
        "offload_optimizer": {"device": "cpu", "pin_memory": True},
        "offload_param": {"device": "nvme", "nvme_path": "/n"},
        "zero_quantized_weights": True,
    },
    "aio": {"block_size": 1},
}


def adapted(
    style: str,
    device: str = "cuda",
    ranks: int = 2,
    source: str = "",
    precision: str = "fp16",
    cpu_has_bf16: bool = True,
) -> Adapted:
    facts = ScriptFacts(path=Path("t.py"))
    if "DummyOptim" in source:
        facts.mentions.add("DummyOptim")
    config = CONFIG | {name: {"enabled": name == precision} for name in ("bf16",) if precision != "fp16"}
    if precision != "fp16":
        config.pop("fp16")
    before = copy.deepcopy(config)
    result = adapt(
        config,
        style=style,
        device=device,
        ranks=ranks,
        planned_ranks=2,
        facts=facts,
        cpu_has_bf16=cpu_has_bf16,
    )
    assert before == config  # the plan itself is left alone
    return result


def test_a_raw_script_gets_the_plan_as_it_is() -> None:
    result = adapted("raw")
    assert result.config == CONFIG and result.changes == []


def test_on_cpu_nothing_is_compiled_and_fp16_is_gone() -> None:
    config = adapted("raw", "cpu").config
    assert config["fp16"] == {"enabled": False} and config["bf16"] == {"enabled": True}
    assert config["optimizer"]["params"]["torch_adam"] is True
    assert config["zero_optimization"] == {"stage": 3, "zero_quantized_weights": False}
    assert "aio" not in config


def test_cpus_without_bf16_train_in_fp32_instead_of_fp16() -> None:
    result = adapted("raw", "cpu", cpu_has_bf16=False)
    assert result.config["fp16"] == {"enabled": False} and result.config["bf16"] == {"enabled": False}
    assert any("fp16 → fp32" in change and "twice the planned bytes" in change for change in result.changes)


def test_a_bf16_plan_stays_bf16_and_slow_cpus_are_warned_of() -> None:
    for has in (True, False):
        result = adapted("raw", "cpu", precision="bf16", cpu_has_bf16=has)
        assert result.config["bf16"] == {"enabled": True}
        assert any("emulate bf16" in warning for warning in result.warnings) != has


def test_every_change_is_told() -> None:
    told = " ".join(adapted("raw", "cpu").changes)
    for word in ("fp16", "torch_adam", "offload_optimizer", "offload_param", "zero_quantized_weights", "aio"):
        assert word in told


def test_another_number_of_ranks() -> None:
    result = adapted("raw", ranks=3)
    assert "train_batch_size" not in result.config
    assert "3" in result.changes[0] and "global batch" in result.changes[0]


def test_accelerate_makes_its_own_optimizer() -> None:
    assert "optimizer" not in adapted("accelerate").config
    assert "optimizer" in adapted("accelerate", source="DummyOptim").config


def test_the_trainer_fills() -> None:
    result = adapted("trainer")
    config = result.config
    for name in ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"):
        assert config[name] == "auto"
    assert config["optimizer"]["params"] == {"lr": "auto", "betas": "auto", "eps": "auto"}
    assert config["fp16"]["enabled"] == "auto" and config["bf16"]["enabled"] == "auto"
    assert config["zero_optimization"]["stage"] == 3


DUMMIES = "from accelerate import Accelerator\nfrom accelerate.utils import DummyOptim, DummyScheduler\n"


@pytest.mark.parametrize(
    ("source", "optimizer", "scheduler"),
    [
        # accelerate's examples/by_feature/deepspeed_with_config_support.py
        ("a = DummyOptim if 'optimizer' in p.deepspeed_config else A\nDummyScheduler(o)\n", False, False),
        ("DummyOptim(p)\nDummyScheduler(o, total_num_steps=5)\n", True, True),
        ("DummyOptim(p)\nDummyScheduler(o, lr_scheduler_callable=f)\n", True, False),
    ],
)  # fmt: skip
def test_a_plans_optimizer_beside_accelerates_dummies(
    tmp_path: Path, source: str, optimizer: bool, scheduler: bool
) -> None:
    """accelerate/accelerator.py refuses a DummyOptim beside a real scheduler, and a DummyScheduler alone."""
    (tmp_path / "t.py").write_text(DUMMIES + source)
    facts = read_script(tmp_path / "t.py", None)
    result = adapt(CONFIG, style="accelerate", device="cuda", ranks=2, planned_ranks=2, facts=facts)
    assert ("optimizer" in result.config, "scheduler" in result.config) == (optimizer, scheduler)
    assert bool(result.changes) == (not optimizer or scheduler)
