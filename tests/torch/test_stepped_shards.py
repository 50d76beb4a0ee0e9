"""What optimizers do with FSDP2's shards: the real classes on two CPU ranks."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.fsdp2_files import run
from tests.support.packages import needs
from zerokit.domain.client_optimizers import CLIENT_OPTIMIZERS, client_optimizer, fails_on_shards
from zerokit.domain.fsdp2_settings import Fsdp2Settings
from zerokit.memory.replay.model_states import own_state_bytes

needs("transformers")
SCRIPT = Path(__file__).parent.parent / "scripts" / "stepped_shards.py"
_NAMES = {"torch": ("adamw_torch", "rmsprop", "adafactor")}
for _name, _row in CLIENT_OPTIMIZERS.items():
    if _row.package != "torch-optimi":  # whose kernels take a GPU
        _NAMES[_row.package] = (*_NAMES.get(_row.package, ()), _name)


@pytest.mark.parametrize("package", _NAMES)
def test_each_steps_shards_or_fails_as_said(package: str, tmp_path: Path) -> None:
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    words = ["torch.distributed.run", "--standalone", "--nproc_per_node", "2", str(SCRIPT)]
    for name, seen in run([*words, *_NAMES[package]], tmp_path).items():
        if fails_on_shards(name) is not None:
            assert "DTensor" in seen or "sharding strategy" in seen, name
            continue
        made = client_optimizer(name)
        settings = Fsdp2Settings(
            optimizer=None if made else name.partition("_")[0], client_optimizer=name if made else None,
            torch_adam=True,
        )  # fmt: skip
        assert seen == own_state_bytes(settings, [(256 * 128, 4)]), name
