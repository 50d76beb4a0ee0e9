"""What a checkpoint is, by the names of its files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from zerokit.checkpoints.files import sharded_model, zero_files
from zerokit.errors import InputError


def write_zero(folder: Path, ranks: int, *more: str) -> Path:
    folder.mkdir(parents=True)
    for rank in range(ranks):
        (folder / f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt").write_bytes(b"x" * (rank + 1))
    for name in ("mp_rank_00_model_states.pt", *more):
        (folder / name).write_bytes(b"xxxxx")
    return folder


def test_zeros_files_are_found_below_a_trainers_folder(tmp_path: Path) -> None:
    folder = write_zero(tmp_path / "checkpoint-5" / "global_step5", 3)
    files = zero_files(tmp_path / "checkpoint-5")
    assert files is not None and (files.folder, files.ranks, files.unsupported) == (folder, 3, "")
    assert (files.states, files.models) == ((1, 2, 3), (5,))
    assert files.universal == tmp_path / "checkpoint-5" / "global_step5_universal"
    assert zero_files(tmp_path / "checkpoint-5" / "global_step6") is None


def test_a_universal_one_older_than_the_files_is_of_other_files(tmp_path: Path) -> None:
    files = zero_files(write_zero(tmp_path / "global_step5", 2))
    assert files is not None and not files.is_converted
    files.universal.mkdir()
    assert files.is_converted
    later = files.universal.stat().st_mtime + 1
    os.utime(files.folder / "mp_rank_00_model_states.pt", (later, later))
    assert not files.is_converted


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("layer_1_expert_0_mp_rank_00_model_states.pt", "experts"),
        ("layer_00-model_states.pt", "stages of a pipeline"),
        ("zero_pp_rank_0_mp_rank_01_optim_states.pt", "2 tensor parallel ranks"),
        ("offloaded_tensors", "NVMe"),
    ],
)
def test_what_is_not_converted_is_named(tmp_path: Path, name: str, what: str) -> None:
    files = zero_files(write_zero(tmp_path / "c", 1, name))
    assert files is not None and what in files.unsupported


def test_missing_ranks_and_several_engines_are_refused(tmp_path: Path) -> None:
    folder = write_zero(tmp_path / "c" / "pytorch_model", 3)
    (folder / "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt").unlink()
    with pytest.raises(InputError, match="the last is of rank 2"):
        zero_files(tmp_path / "c")
    write_zero(tmp_path / "c" / "pytorch_model_1", 3)
    with pytest.raises(
        InputError, match=r"2 folders .*: name one \(\S+/pytorch_model, \S+/pytorch_model_1\)$"
    ):
        zero_files(tmp_path / "c")
    for step in ("1", "2", "3", "4"):
        write_zero(tmp_path / "out" / f"checkpoint-{step}" / f"global_step{step}", 1)
    with pytest.raises(InputError, match=r"4 folders .* \(\S+-1, \S+-2, \S+/checkpoint-3, …\)$"):
        zero_files(tmp_path / "out")
    for step in ("1", "2"):
        write_zero(tmp_path / "one" / "checkpoint-2" / f"global_step{step}", 1)
    with pytest.raises(InputError, match=r"2 folders .* \(\S+/one/checkpoint-2\)$"):
        zero_files(tmp_path / "one")


def test_fsdps_weights_lie_in_a_folder(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model_fsdp.bin").touch()
    assert sharded_model(tmp_path) is None
    (tmp_path / "pytorch_model_fsdp_0").mkdir()
    assert sharded_model(tmp_path) == tmp_path / "pytorch_model_fsdp_0"
