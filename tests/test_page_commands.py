"""Every command in a ``sh`` block of the README and of the documentation is run, or NOT_RUN says why not.

The commands of a page run in order in one folder, which holds what the page takes for granted: the plan of
its first ``zerokit plan``, a script, a file. They run in bash, as a reader types them, but for what needs
GPUs or a network:

- ``launch`` without ``--device`` gets ``--dry-run --device cuda``;
- a command in INSTEAD runs as it stands there;
- models and data sets of the Hub are folders of that name in the working folder.

What rehearses or trains runs with ``-m slow``, and so does what takes its plan.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.checkpoints import write_run_with_checkpoint
from tests.support.packages import needs
from tests.support.pages import ROOT, lay_out, lay_out_hub, lay_out_snapshots, sh_commands, write_failed_run

PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
FIRST_PLAN = re.compile(r"^\$ (zerokit plan (?!.*--device cpu)[^#\n]*)$", re.MULTILINE)
ANY_PLAN = "zerokit plan --model qwen2.5-1.5b --gpus 8 --gpu h100-sxm-80gb"
IS_SLOW = re.compile(r"zerokit rehearse |-m trl\.|--(out|plan) (cpu-plan|dpo-plan|plan)( |$)")
REHEARSAL = "docs/rehearsal.md"
EXPLAIN = "docs/guide/explain.md"
LAUNCH = "docs/guide/launch.md"
FROM_THE_HUB = (REHEARSAL, "docs/quickstart/trl.md")  # every command of theirs is slow
FAILED_RUN = Path("runs/20260131-120000-train")
PACKAGING = "tests/test_packaging.py::test_nothing_but_the_base_dependencies_is_there"
TOOLS = "tests/corpus_scripts/test_tools.py"
DEMO = "tests/test_demo.py"
FROZEN_BASE = (
    "tests/rehearsal/test_libraries.py::test_a_frozen_base_is_told_apart_from_what_the_optimizer_holds"
)
PLAN_SCRIPT = "tests/rehearsal/test_plan_script.py"
ACCELERATE = "tests/deepspeed/test_emitted_files.py::test_accelerate_reads_the_deepspeed_file"

NOT_RUN = {
    "zerokit rehearse --gpus 4 --gpu l40s train.yaml": (
        "needs that trainer, in an environment of its own",
        TOOLS,
    ),
    "zerokit rehearse --gpus 4 --gpu l40s llamafactory-cli train train.yaml": (
        "needs that trainer, in an environment of its own",
        TOOLS,
    ),
    "zerokit launch --no-plan --gpus 4 train.yaml": (
        "needs that trainer, in an environment of its own",
        TOOLS,
    ),
    "zerokit launch --plan zerokit-plan axolotl train zerokit-plan/train.yaml": (
        "needs that trainer, in an environment of its own",
        TOOLS,
    ),
    "./launch.sh": ("installs everything and trains", DEMO),
    "./launch.sh test": ("is what runs this test", "tests/test_launch_sh.py"),
    "pip install .": ("downloads; installed in an empty environment", PACKAGING),
    "pip install '.[train]'": ("downloads; launch.sh installs the same", DEMO),
    "pip install '.[train]' bitsandbytes": ("downloads; launch.sh installs the extra", DEMO),
    "pip install '.[train]' 'trl>=1.16' datasets": ("downloads; launch.sh installs the extra", DEMO),
    "accelerate launch --config_file zerokit-plan/accelerate.yaml train.py": ("trains on 8 GPUs", ACCELERATE),
    "zerokit plan --gpus 4 --gpu l40s --global-batch 32 --out plan -- train.py": ("rehearses", PLAN_SCRIPT),
    "zerokit plan --gpus 8 --gpu h200 -- train.py --model meta-llama/Llama-3.1-8B …": (
        "rehearses an 8B model; docs/rehearsal.md has the same",
        PLAN_SCRIPT,
    ),
    "zerokit plan --engine fsdp2 --gpus 2 --gpu h200 -- train.py ARGS": (
        "rehearses",
        "tests/rehearsal/test_fsdp2_by_yaml.py",
    ),
    "zerokit launch --plan plan train.py": ("takes that plan", PLAN_SCRIPT),
    "zerokit rehearse --plan zerokit-plan examples/train_lora.py --model Llama-3.1-8B --four_bit "
    "--data my.txt --output_dir out": ("rehearses an 8B model, for minutes", FROZEN_BASE),
    "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True": ("the dry run of full-8b.md prints it", None),
    "hf download Qwen/Qwen2.5-1.5B --exclude '*.safetensors'": ("downloads", None),
    "zerokit gpus --update-prices": ("downloads", "tests/unit/catalog/test_prices.py"),
    "zerokit check --lsp": ("waits for an editor", "tests/unit/planner/test_language_server.py"),
    "python -c \"from datasets import load_dataset; load_dataset('trl-lib/ultrafeedback_binarized')\"": (
        "downloads",
        None,
    ),
}
"""Why a command is not run here, and the test of the same thing where there is one."""

INSTEAD = {
    'eval "$(_ZEROKIT_COMPLETE=bash_source zerokit)"': (
        'eval "$(_ZEROKIT_COMPLETE=bash_source zerokit)" && complete -p zerokit'
    ),
    # their shells may be missing: what they would read
    'eval "$(_ZEROKIT_COMPLETE=zsh_source zerokit)"': "_ZEROKIT_COMPLETE=zsh_source zerokit",
    "_ZEROKIT_COMPLETE=fish_source zerokit | source": "_ZEROKIT_COMPLETE=fish_source zerokit",
    "zerokit emit accelerate --form plugin > accelerate.yaml": (
        "zerokit emit accelerate --form plugin > accelerate.yaml && "
        "zerokit check accelerate.yaml --world-size 8"
    ),
    # without Slurm
    "sbatch job.sh": "bash -n job.sh && cat job.sh",
    # what stands for "…" on the page
    "zerokit rehearse --gpus 8 --gpu h100-sxm-80gb --plan out/ train.py …": (
        "zerokit rehearse --gpus 8 --gpu h100-sxm-80gb --plan out/ train.py --model meta-llama/Llama-3.1-8B"
    ),
    "zerokit rehearse --json -m trl.scripts.sft --model_name_or_path DIR …": (
        "zerokit rehearse --json -m trl.scripts.sft --model_name_or_path DIR --dataset_name data "
        "--max_length 32 --output_dir out"
    ),
}

PYTHONS_JQ = '\'import json, sys; print(json.load(sys.stdin)["chosen"]["zero_stage"])\''
DRY = r"ZEROKIT_DEVICE=cuda .*--master_port.*train\.py"
TRL = r"added from the plan: --per_device_train_batch_size \d+.*trl"
SHOWS: dict[str, tuple[str, ...]] = {
    "docs/from-accelerate.md": (
        "no problems",
        "fits: ",
        "Fits: ",
        "accelerate.yaml .*no problems",
        "Written: converted/accelerate.yaml",
        "Written: back/",
    ),
    "docs/deepspeed-or-fsdp2.md": ("Next best", "Written: fsdp2/accelerate.yaml"),
    "docs/guide/recipes.md": tuple(
        f"{name}: written" for name in ("job.yaml", "job.dstack.yml", "job.py", "driver.py")
    ),
    "docs/calculator.md": ("Fits: ",),
    "docs/other-calculators.md": (r"peak 25\.4 GiB",),
    "docs/guide/fits-in.md": (
        r"complete .*-F \w+ zerokit",
        "#compdef zerokit",
        "complete .*zerokit",
        r"^\d$",
    ),
    EXPLAIN: (
        r"had no room for 0\.12 GiB in forward at .*fix: .*batch",
        r"ZEROKIT_SNAPSHOT=oom,3 .*train\.py",
        r"more than in before\.pickle \+60\.0 MiB activations Block",
        r"backward .* predicted 0\.42 GiB",
    ),
    LAUNCH: (
        DRY + " --num_train_epochs 3",
        r"made again for 2: .*takes .* of disk.*ZEROKIT_UNIVERSAL=\S+global_step200 ",
        r"checkpoint-200 takes 0\.2 KiB of disk and 0\.50 GiB of host memory",
    ),
    "docs/out-of-memory.md": (
        r"rank 1.*backward.*2\.0.*GiB.*lm_head.*next-plan",
        DRY + " --num_train_epochs 3",
        DRY + " --num_train_epochs 3",
    ),
    "docs/quickstart/70b-slurm.md": (
        "",
        r"--nodes=2.*--time=12:00:00.*train\.py --num_train_epochs 3",
        "",
        r"train\.py --num_train_epochs 3 --resume_from_checkpoint out/checkpoint-500",
    ),
    "docs/quickstart/accelerate.md": (DRY,),
    "docs/quickstart/fsdp2.md": (r"strategy +FSDP2", "Next best", "context parallel", "tensor parallel 2"),
    "docs/quickstart/full-8b.md": ("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.*" + DRY, DRY),
    "docs/quickstart/lora-24gb.md": (
        "LoRA, rank 16",
        "Outcome: ok",
        r"--per_device_train_batch_size 1 --gradient_accumulation_steps 16 --bf16 True.*--four_bit",
    ),
    "docs/quickstart/trainer.md": (
        r"added from the plan: --per_device_train_batch_size 1 .*--block_size 2048",
    ),
    "docs/quickstart/trl.md": (TRL, "Rehearsed: ", TRL),
    REHEARSAL: ("GiB", "GiB", "peak_allocated_bytes", "Rehearsed: ", DRY, r"baseline\.json"),
}
"""What each command of a page prints, in order: a regular expression."""


@dataclass(frozen=True)
class Command:
    """A command of a page that is run, and what it prints."""

    page: str
    text: str
    shows: str

    @property
    def is_slow(self) -> bool:
        return IS_SLOW.search(self.text) is not None

    @property
    def run_as(self) -> str:
        text = INSTEAD.get(self.text, self.text).removesuffix(" …")
        if text.startswith("zerokit launch ") and "--device" not in text:
            options = "--device cuda" if "--dry-run" in text else "--dry-run --device cuda"
            text = text.replace("zerokit launch", f"zerokit launch {options}", 1)
        if shutil.which("jq") is None:
            text = text.replace("jq .chosen.zero_stage", f"{sys.executable} -c {PYTHONS_JQ}")
        return text


def commands_of(page: str, text: str) -> list[Command]:
    """What is run of a page.

    Raises:
        ValueError: a command of the page is neither in SHOWS nor in NOT_RUN, or one too many is.
    """
    found = [command for command in sh_commands(text) if command not in NOT_RUN]
    shows = SHOWS.get(page, ())
    if len(found) != len(shows):
        raise ValueError(f"{page}: {len(shows)} entries in SHOWS for its {len(found)} commands {found}")
    return [Command(page, *pair) for pair in zip(found, shows, strict=True)]


def every_command() -> list[Command]:
    return [
        command for page in PAGES for command in commands_of(str(page.relative_to(ROOT)), page.read_text())
    ]


def bash(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    programs = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": programs, "COLUMNS": "200", "HF_HOME": str(folder / "hub"),
                   "OMP_NUM_THREADS": "1"}  # fmt: skip
    environment.pop("PYTEST_CURRENT_TEST", None)
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], cwd=folder, env=environment, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=900, check=False,
    )  # fmt: skip


class Folders:
    """One folder for each page, made ready for its first command."""

    def __init__(self, base: Path) -> None:
        self._base = base
        self._ready: dict[str, Path] = {}

    def of(self, command: Command) -> Path:
        if command.page not in self._ready:
            self._ready[command.page] = self._make(command)
        return self._ready[command.page]

    def _make(self, command: Command) -> Path:
        folder = self._base / str(len(self._ready))
        folder.mkdir()
        lay_out(folder, trainer=command.page == REHEARSAL)
        shown = FIRST_PLAN.search((ROOT / command.page).read_text())
        done = bash(shown[1] if shown else ANY_PLAN, folder)
        assert done.returncode == 0, done.stdout
        if command.page == REHEARSAL:
            shutil.copytree(folder / "zerokit-plan", folder / "out")
        if command.page == EXPLAIN:
            lay_out_snapshots(folder)
        if command.page == LAUNCH:
            write_run_with_checkpoint(folder / "runs" / "first", folder / "out" / "checkpoint-200", ranks=4)
        write_failed_run(folder / FAILED_RUN, folder / "zerokit-plan")
        if command.page in FROM_THE_HUB:
            lay_out_hub(folder)
        return folder


@pytest.fixture(scope="module")
def folders() -> Iterator[Folders]:
    with tempfile.TemporaryDirectory(prefix="zk-") as base:
        yield Folders(Path(base))


@pytest.mark.parametrize(
    "command",
    [pytest.param(command, marks=pytest.mark.slow if command.is_slow else ()) for command in every_command()],
    ids=lambda command: f"{Path(command.page).stem}: {command.text}",
)
def test_command(command: Command, folders: Folders) -> None:
    if "trl." in command.text:
        needs("trl")
    if "zerokit launch" in command.text:
        needs("deepspeed")
    done = bash(command.run_as, folders.of(command))
    assert done.returncode == 0, done.stdout
    printed = " ".join(done.stdout.split())
    assert re.search(command.shows, printed), f"{command.page} wants {command.shows}\n{done.stdout}"


PLAN_LORA = (
    "zerokit plan --model llama-3.1-8b --method lora --gpus 1 --gpu rtx-4090 --seq-len 2048 --global-batch 16"
)
SIZE_14B = "zerokit size --model qwen2.5-14b --method lora --gpu rtx-4090 --host-ram 128GiB"


@pytest.mark.parametrize(
    ("page", "sentence", "command", "printed"),
    [
        (
            "quickstart/lora-24gb.md",
            r"fits as well \((\S+) GiB required, with full checkpointing, (\S+) s a step\)",
            PLAN_LORA,
            r"Fits: (\S+) GiB required .* Step: (\S+) s, .* full checkpointing",
        ),
        ("which-gpu.md", r"with `--host-ram 128GiB` it takes one\.", SIZE_14B, r"rtx-4090 lora allowed 1 "),
    ],
)
def test_figures_in_a_sentence(page: str, sentence: str, command: str, printed: str, tmp_path: Path) -> None:
    said = re.search(sentence, (ROOT / "docs" / page).read_text())
    output = bash(command, tmp_path).stdout
    found = re.search(printed, " ".join(output.split()))
    assert said is not None and found is not None, output
    assert [float(figure) for figure in said.groups()] == pytest.approx(
        [float(figure) for figure in found.groups()], rel=0.1
    )


def test_what_is_not_run_is_on_a_page_and_names_a_test_that_there_is() -> None:
    shown = {command for page in PAGES for command in sh_commands(page.read_text())}
    assert shown >= set(NOT_RUN) and shown >= set(INSTEAD)
    for _, test in NOT_RUN.values():
        if test is not None:
            file, _, name = test.partition("::")
            assert f"def {name}" in (ROOT / file).read_text()


def test_a_command_that_nobody_runs_is_found() -> None:
    block = "\n```sh\nzerokit plan --gpus 8 \\\n    --gpu h200   # a comment\npip install .\n```\n"
    with pytest.raises(ValueError, match=r"0 entries in SHOWS for its 1 .*plan --gpus 8 --gpu h200'"):
        commands_of("README.md", PAGES[0].read_text() + block)
