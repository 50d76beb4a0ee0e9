"""What a rehearsal lacks is said by its name: kernels that nothing stands in for, and PyTorch itself."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.rehearsals import SCRIPTS, rehearse

torch = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import UnsupportedOperatorException  # noqa: E402

from zerokit.catalog import gpus  # noqa: E402
from zerokit.rehearsal.conduct import RehearsalRequest  # noqa: E402
from zerokit.rehearsal.process import endings, guesses, native, stand_ins  # noqa: E402
from zerokit.rehearsal.ranks import rehearse as conduct  # noqa: E402
from zerokit.script.entry_points import Target  # noqa: E402
from zerokit.timing import operators  # noqa: E402

KERNELS = [name for name in stand_ins.NOT_STOOD_IN if importlib.util.find_spec(name) is None]


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_that_are_imported_and_not_there_are_told(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, stand_ins.Missing(told.append)])
    assert importlib.util.find_spec(name) is None
    assert told == []  # Transformers looks for all of them, and imports none
    with pytest.raises(ModuleNotFoundError) as caught:
        importlib.import_module(name)
    assert len(told) == 1 and told[0].startswith(f"{stand_ins.NOT_STOOD_IN[name]} is imported")
    assert stand_ins.NOT_STOOD_IN[name] in stand_ins.explain(caught.value)
    assert stand_ins.explain(ModuleNotFoundError(name="nltk")) == ""


def test_tritons_kernels_are_recorded_and_allocate_nothing(tmp_path: Path) -> None:
    """By its stand-in where it is not installed, which PyTorch's compiler does not take for the real one."""
    told = []
    for launched, arguments in ((True, ()), (False, ("--none",))):
        target = Target(script=str(SCRIPTS / "own_kernels.py"), module=None, arguments=arguments)
        path = tmp_path / "operators.json"
        done = conduct(RehearsalRequest(target=target, gpu=gpus.load("h200"), operators=path))
        assert done.complete and not done.warnings, (done.stopped, done.warnings)
        assert ("Triton kernels" in done.stubbed) is launched
        names = [event.name for event in operators.from_rows(json.loads(path.read_text()))]
        assert [name for name in names if "triton:" in name] == [
            "triton:Autotuner",
            "triton:plain",
        ] * launched
        told.append(done.ranks[0].phases)
    assert told[0] == told[1]


def test_a_sparse_layout_is_named_as_what_is_not_modelled() -> None:
    operator = torch.ops.aten._to_sparse_bsr.default
    assert "only those of coordinates" in stand_ins.explain(UnsupportedOperatorException(operator))
    assert stand_ins.explain(RuntimeError("the hardware is sparse")) == ""


@pytest.mark.parametrize(
    ("torch", "reason"),
    [
        pytest.param('__version__ = "1.13.1"', "cannot be made to believe in a GPU", marks=pytest.mark.slow),
        ('raise ImportError("libcudart.so.13: no such file")', "PyTorch cannot be imported here (libcudart"),
    ],
)
def test_a_pytorch_that_does_not_work_is_told_before_the_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, torch: str, reason: str
) -> None:
    package = tmp_path / "other" / "torch"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(torch)
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    code, said, _ = rehearse(tmp_path, "--gpu", "h200", str(SCRIPTS / "plain_loop.py"), "1")
    assert (code, said["complete"], said["fits"], said["ranks"][0]["phases"]) == (14, False, None, {})
    assert reason in said["stopped"]["reason"]
    assert said["stopped"]["location"] == ""


def test_another_system_and_a_failing_self_test_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(native.UnknownLayout, match=r"the self-test fails: .*rehearsals were tried with"):
        native.self_test()  # nobody made this process believe
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(native.UnknownLayout, match="needs Linux"):
        native.install()


def test_a_pytorch_that_nobody_tried_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert native.version_note() is None
    monkeypatch.setattr(native.torch, "__version__", "9.9.0+cu990")
    note = native.version_note()
    assert note is not None and note.endswith("this is 9.9.0+cu990")


TRIED = [(2, minor) for minor in range(native.OLDEST_TORCH[1], native.NEWEST_TORCH[1] + 1)]


@pytest.fixture(scope="module")
def phases_here(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """With the PyTorch that all other tests run."""
    code, said, errors = rehearse(
        tmp_path_factory.mktemp("here"), "--gpu", "h200", str(SCRIPTS / "plain_loop.py"), "2"
    )
    assert code == 0, errors
    phases: dict[str, int] = said["ranks"][0]["phases"]
    return phases


@pytest.mark.slow
@pytest.mark.parametrize("release", TRIED, ids=lambda release: ".".join(map(str, release)))
def test_each_supported_pytorch_passes_the_self_test_and_allocates_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, phases_here: dict[str, int], release: tuple[int, int]
) -> None:
    """``TORCH_VERSIONS`` names a folder that keeps them: 4 to 6 GB for each CUDA build."""
    version = ".".join(map(str, release))
    kept = os.environ.get("TORCH_VERSIONS")
    folder = (Path(kept) if kept else tmp_path) / version
    if not (folder / "torch").is_dir():
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-compile", "--target", str(folder)]
        done = subprocess.run([*pip, f"torch=={version}.*"], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            pytest.skip(f"it cannot be installed here: {done.stderr[-300:]}")
    try:
        monkeypatch.setenv("PYTHONPATH", str(folder))
        code, said, errors = rehearse(tmp_path, "--gpu", "h200", str(SCRIPTS / "plain_loop.py"), "2")
        assert (code, said["stopped"]) == (0, None), errors
        assert said["versions"]["torch"].startswith(f"{version}.")
        assert not [text for text in said["warnings"] if "rehearsals were tried with" in text]
        assert said["ranks"][0]["phases"] == phases_here
    finally:
        if not kept:
            shutil.rmtree(folder)


def test_packages_in_a_folder_of_their_own_are_no_code_of_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed, own = tmp_path / "installed", tmp_path / "own"
    (installed / "trl-1.16.0.dist-info").mkdir(parents=True)
    own.mkdir()
    monkeypatch.setenv("PYTHONPATH", f"{installed}{os.pathsep}{own}")
    guesses._targets.cache_clear()
    try:
        assert guesses.is_library(str(installed / "trl" / "trainer.py"))
        assert guesses.short(str(installed / "trl" / "trainer.py")) == "trl/trainer.py"
        assert not guesses.is_library(str(own / "train.py"))
    finally:
        guesses._targets.cache_clear()


LIBRARY = """from flash_attn.bert_padding import index_first_axis, pad_input, rearrange, unpad_input
from flash_attn.flash_attn_interface import _flash_attn_backward, _flash_attn_forward
from flash_attn.utils.distributed import all_gather
"""
LATE = """import torch, optional, rings
assert optional.flash_attn is None
q = torch.randn(2, 1024, 8, 64, device="cuda", dtype=torch.bfloat16)
out, lse, _, _ = rings._flash_attn_forward(q, q, q, 0.0, 0.125, True, -1, -1, 0.0, None, False)
dq, dk, dv = (torch.empty_like(q) for _ in range(3))
before = torch.cuda.memory_allocated()
options = 0.0, 0.125, True, -1, -1, 0.0, None, False
rings._flash_attn_backward(out, q, q, q, out, lse, dq, dk, dv, *options)
assert torch.cuda.memory_allocated() == before
left, right = (torch.empty(256, 256, device="cuda").to(torch.float8_e4m3fn) for _ in range(2))
one, product = torch.ones((), device="cuda"), torch.empty(256, 256, device="cuda", dtype=torch.bfloat16)
assert torch._scaled_mm(left, right.t(), one, one, out_dtype=torch.bfloat16, out=product) is product
if True:
    from flash_attn.modules.mha import MHA
MHA(8)
"""


def test_what_a_library_imports_of_flash_attention_is_there_or_named(tmp_path: Path) -> None:
    (tmp_path / "optional.py").write_text(
        "try:\n    import flash_attn\nexcept ImportError:\n    flash_attn = None\n"
    )
    (tmp_path / "rings.py").write_text(LIBRARY)
    (tmp_path / "late.py").write_text(LATE)
    _, said, _ = rehearse(tmp_path, "--gpu", "h200", "late.py")
    assert said["stopped"]["operator"] == "flash_attn.modules.mha.MHA", said["stopped"]
    assert not [text for text in said["warnings"] if "flash-attn" in text]


def test_a_deepspeed_file_that_is_not_the_trainers_arguments_is_a_matter_of_arguments() -> None:
    from transformers import TrainingArguments
    from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig

    config = HfTrainerDeepSpeedConfig({"train_micro_batch_size_per_gpu": 4})
    arguments = TrainingArguments(output_dir="out", per_device_train_batch_size=1, use_cpu=True)
    config.trainer_config_process(arguments)
    with pytest.raises(ValueError, match="per_device_train_batch_size=1") as caught:
        config.trainer_config_finalize(arguments, object(), 10)
    assert endings.cause_of(caught.value, has_guessed=True) == "argument"
