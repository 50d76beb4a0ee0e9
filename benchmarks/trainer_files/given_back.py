"""Whether a trainer accepts the files that ``plan FILE`` gives back, by the trainer's own validator.

python -m benchmarks.trainer_files.given_back TRAINER FOLDER    # TRAINER is installed here

Each file of the folder, and below it, that the validator accepts is planned for TinyLlama on four H100s; the
arguments of ms-swift's shell scripts are written as a file first. A model of another family than a file's has
other modules: files that name theirs are refused, and counted as not planned.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import io
import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from benchmarks.rehearsal.inputs import Inputs
from zerokit.cli import run
from zerokit.errors import ZerokitError
from zerokit.strictload import load_yaml
from zerokit.trainer_files.reading import as_arguments, read_trainer_file

_JOB = ("--model", "tinyllama-1.1b", "--gpus", "4", "--gpu", "h100", "--seq-len", "2048")


def _axolotl(value: dict[str, Any]) -> None:
    """Raises ValueError: axolotl (0.19) refuses it."""
    from axolotl.utils.schemas.config import AxolotlConfigWCapabilities

    gpu = {"bf16": True, "tf32": True, "fp8": False, "n_gpu": 1, "compute_capability": "sm_90"}
    AxolotlConfigWCapabilities(**value, capabilities=gpu, env_capabilities={"torch_version": "2.11.0"})


def _llamafactory(value: dict[str, Any]) -> None:
    """Raises ValueError: LLaMA-Factory (0.9.5) refuses it, but for DeepSpeed, which needs ranks here, and for
    what Transformers took away since."""
    from llamafactory.hparams import get_train_args

    left = {key: one for key, one in value.items() if key not in ("deepspeed", "warmup_ratio")}
    with tempfile.TemporaryDirectory() as output:
        get_train_args({**left, "output_dir": output, "use_cpu": True})


def _trl(value: dict[str, Any]) -> None:
    """Raises ValueError: the arguments of the trainer that knows most keys (TRL 1.16) refuse it."""
    from transformers import HfArgumentParser
    from trl import DPOConfig, ModelConfig, RewardConfig, ScriptArguments, SFTConfig

    own = max(
        (SFTConfig, DPOConfig, RewardConfig), key=lambda one: len(value.keys() & one.__dataclass_fields__)
    )
    left = {key: one for key, one in value.items() if key != "deepspeed"}
    with tempfile.TemporaryDirectory() as output:
        given = {**left, "output_dir": output, "use_cpu": True}
        HfArgumentParser((ScriptArguments, own, ModelConfig)).parse_dict(given, allow_extra_keys=True)


def _swift(value: dict[str, Any]) -> None:
    """Raises ValueError: ms-swift (4.6) refuses it, for a small model that needs no network; its DeepSpeed
    file needs ranks here."""
    from swift.arguments import RLHFArguments, SftArguments
    from swift.utils import parse_args

    own = RLHFArguments if "rlhf_type" in value else SftArguments
    with tempfile.TemporaryDirectory() as folder:
        left = {key: one for key, one in value.items() if key != "deepspeed"}
        small = {"model": str(_model()), "model_type": "llama", "template": "llama"}
        given = {**left, **small, "output_dir": folder, "use_cpu": True}
        path = Path(folder) / "given.yaml"
        path.write_text(yaml.safe_dump(given), encoding="utf-8")
        _, unknown = parse_args(own, list(as_arguments(str(path))))
    if unknown:
        raise ValueError(f"unknown arguments {unknown}")


@functools.cache
def _model() -> Path:
    """The folder of a small model, which goes when the program ends."""
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    small = {"model_type": "llama", "vocab_size": 256, "hidden_size": 64, "intermediate_size": 128,
             "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4}  # fmt: skip
    return Inputs(Path(folder) / "inputs").model(small)


VALIDATORS: Mapping[str, Callable[[dict[str, Any]], None]] = {
    "axolotl": _axolotl, "llamafactory": _llamafactory, "trl": _trl, "swift": _swift,
}  # fmt: skip


def _refusal(validator: Callable[[dict[str, Any]], None], path: Path) -> str:
    """Why a validator refuses a file; empty: it does not. The trainers raise whatever they like."""
    try:
        validator(dict(load_yaml(path).value))
    except (Exception, SystemExit) as error:
        return str(error).partition("\n")[2].strip()[:200] or str(error)[:200] or type(error).__name__
    return ""


def judged(trainer: str, path: Path, out: Path) -> str:
    """``accepted``, ``not planned``, or what the trainer says against a file, before or after."""
    if why := _refusal(VALIDATORS[trainer], path):
        return f"refused as it is: {why}"
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        code = run(["plan", str(path), *_JOB, "--from", trainer, "--out", str(out)])
    if code:
        return "not planned"
    why = _refusal(VALIDATORS[trainer], out / path.name)
    return f"REFUSED given back: {why}" if why else "accepted"


def _as_file(script: Path, folder: Path) -> Path | None:
    """The arguments of a shell script as a file in a folder; None: it has no trainer's command."""
    try:
        value = read_trainer_file(str(script)).document.value
    except ZerokitError:
        return None
    path = folder / f"{script.stem}.yaml"
    path.write_text(yaml.safe_dump(value), encoding="utf-8")
    return path


def main() -> None:
    trainer, folder = sys.argv[1], Path(sys.argv[2])
    os.chdir(folder)
    counts: Counter[str] = Counter()
    for path in sorted(one for one in Path().rglob("*") if one.suffix in (".yaml", ".yml", ".sh")):
        with tempfile.TemporaryDirectory() as out:
            if path.suffix == ".sh":
                path = _as_file(path, Path(out))
            found = judged(trainer, path, Path(out) / "plan") if path else "no command that trains"
        counts[found.partition(":")[0]] += 1
        if found.startswith("REFUSED"):
            print(f"{path}: {found}")
    print(dict(counts))


if __name__ == "__main__":
    main()
