"""Models that a process holds beside the one that trains, and what of them is resident."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from zerokit.instrument.engine_facts import live_modules, parameters_beside, resident_tensor_bytes
from zerokit.launcher.rank.movement import HostMemory

MIB = 1 << 20


def test_a_teacher_is_counted_and_shared_or_meta_weights_are_not() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8, bias=False), torch.nn.Linear(8, 8, bias=False))
    wrapped = torch.nn.Sequential(model[0])
    shape_alone = torch.nn.Linear(64, 64, device="meta")
    teacher = torch.nn.Linear(16, 32)
    broken = torch.nn.Linear.__new__(torch.nn.Linear)  # its __init__ has yet to run
    assert parameters_beside(model, [model, *model, wrapped, shape_alone, broken]) == 0
    assert parameters_beside(model, [model, teacher, teacher, shape_alone]) == 16 * 32 + 32
    found = live_modules()
    assert all(any(module is one for one in found) for module in (model, wrapped, teacher))


def test_of_weights_in_a_mapped_file_what_was_read_is_resident(tmp_path: Path) -> None:
    file = tmp_path / "weights.safetensors"
    save_file({"weight": torch.ones(16 * MIB // 4)}, file)
    host = HostMemory()
    module = torch.nn.Module()
    module.register_buffer("weight", load_file(file)["weight"])
    module.register_parameter("own", torch.nn.Parameter(torch.ones(4 * MIB // 4)))
    before = host.read()[0]
    assert resident_tensor_bytes([module, module]) < 5 * MIB  # nothing of the file was read
    torch.sum(module.weight)
    tensors = resident_tensor_bytes([module])
    assert tensors == pytest.approx(20 * MIB, abs=MIB)
    assert host.read()[0] - before == pytest.approx(16 * MIB, abs=3 * MIB)  # as the kernel counts
