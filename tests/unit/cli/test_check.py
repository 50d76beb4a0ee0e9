"""``zerokit check`` as people run it: exit codes, formats, fixes, and nothing heavy or hostile imported."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.check_runs import GOOD, check, write
from zerokit.cli import run

BROKEN = """{
  "train_micro_batch_size_per_gpu": "4",
  "zero_optimization": {
    "stage": 2,
    "offload_param": {"device": "CPU"},
    "overlap_com": true,
  },
  "elasticity": {"enabled": false},
  "gradient_accumulation_step": 2
}
"""


def test_json_is_one_object_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, "ds.json", BROKEN)
    code, out, _ = check(path, "--json", capsys=capsys)
    body = json.loads(out)
    assert (code, body["schema"], body["ok"]) == (2, "zerokit.check/2", False)
    assert body["files"] == [{"path": path, "kind": "deepspeed", "ok": False}]
    finding = next(item for item in body["findings"] if item["rule"] == "number-as-text")
    assert (finding["line"], finding["column"], finding["severity"], finding["fixable"]) == (
        2,
        3,
        "error",
        True,
    )


def test_a_plans_own_file_fits_and_a_copy_of_it_depends_on_the_script(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The DeepSpeed file does not say whether the script checkpoints; the plan beside it does."""
    asked = ("--model", "llama-3.1-70b", "--gpus", "8", "--gpu", "h200")
    assert run(["plan", *asked, "--out", str(tmp_path / "plan")]) == 0
    planned = tmp_path / "plan" / "ds_config.json"
    capsys.readouterr()
    assert check(str(planned), *asked, capsys=capsys)[0] == 0
    copy = write(tmp_path, "ds.json", planned.read_text())
    code, out, _ = check(copy, *asked, capsys=capsys)
    assert code == 0
    assert "warning: does not fit" in out and "fits if the script turns that on" in out
    assert check(copy, *asked, "--checkpointing", "full", capsys=capsys)[:2] == (
        0,
        f"{copy} (deepspeed): no problems\n",
    )
    assert check(copy, *asked, "--checkpointing", "none", capsys=capsys)[0] == 2


def test_tensor_parallel_against_the_models_heads(tmp_path: Path) -> None:
    from zerokit.planner.checking import _key_value_heads, hf_config

    write(tmp_path, "config.json", {"num_key_value_heads": 4, "auto_map": {"AutoConfig": "evil.Evil"}})
    assert _key_value_heads(hf_config(str(tmp_path))) == 4
    assert _key_value_heads(hf_config("llama-3.1-8b")) == 8


def test_the_ranks_of_complete_batch_sizes_are_named_and_taken(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file is refused on any other number of ranks."""
    sizes = {"train_batch_size": 64, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 4}
    path = write(tmp_path, "ds.json", {**sizes, "zero_optimization": {"stage": 2}})
    code, out, _ = check(path, capsys=capsys)
    assert code == 0 and "(deepspeed, 4 ranks by its train_batch_size): no problems" in out
    code, _, err = check(path, "--model", "llama-3.2-1b", "--gpu", "h200", capsys=capsys)
    assert code == 0 and "fits" in err
    assert "by its train_batch_size" not in check(path, "--world-size", "4", capsys=capsys)[1]
    path = write(
        tmp_path, "ds.json", {**sizes, "train_batch_size": "auto", "zero_optimization": {"stage": 2}}
    )
    assert "by its train_batch_size" not in check(path, "--for", "accelerate", capsys=capsys)[1]


def test_fix_writes_what_is_safe_and_leaves_the_rest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, "ds.json", BROKEN)
    Path(path).chmod(0o640)
    code, out, err = check(path, "--fix", capsys=capsys)
    fixed = json.loads(Path(path).read_text())
    assert fixed == {
        "train_micro_batch_size_per_gpu": 4,
        "zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}, "overlap_comm": True},
        "gradient_accumulation_step": 2,
    }
    assert code == 2 and "gradient_accumulation_steps" in out and "offload-param-below-stage-3" in out
    assert err.count("fixed:") == 5
    assert Path(path).stat().st_mode & 0o777 == 0o640
    assert list(tmp_path.iterdir()) == [Path(path)]
    text = Path(path).read_text()
    check(path, "--fix", capsys=capsys)
    assert Path(path).read_text() == text


def test_fix_goes_on_until_nothing_is_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, "ds.json", {**GOOD, "zero_optimization": {"zero_stage": "3"}})
    Path(path).write_bytes(b"\xef\xbb\xbf" + Path(path).read_bytes().replace(b"\n", b"\r\n"))
    assert check(path, "--fix", capsys=capsys)[0] == 0
    text = Path(path).read_bytes().decode()
    assert json.loads(text)["zero_optimization"] == {"stage": 3}
    assert "\r\n" in text and text.count("\n") == text.count("\r\n")


def test_fix_of_a_removed_feature_that_was_on_is_left_to_people(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, "ds.json", {**GOOD, "amp": {"enabled": True}})
    before = Path(path).read_text()
    assert check(path, "--fix", capsys=capsys)[0] == 2
    assert Path(path).read_text() == before


def test_fix_of_an_accelerate_yaml(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "distributed_type: DEEPSPEED  # kept\nnum_proceses: 2\nmixed_precision: no # off\n"
    path = write(tmp_path, "a.yaml", text)
    check(path, "--fix", capsys=capsys)
    fixed = "distributed_type: DEEPSPEED  # kept\nnum_processes: 2\nmixed_precision: 'no' # off\n"
    assert Path(path).read_text() == fixed


@pytest.mark.parametrize(
    ("name", "text", "kind"),
    [
        ("x.json", '{"zero_optimization": {"stage": 1}, "train_batch_size": 1}', "deepspeed"),
        ("x.json", '{"distributed_type": "NO"}', "accelerate"),
        ("x.yaml", "distributed_type: DEEPSPEED\nnum_processes: 1\n", "accelerate"),
        ("hosts", "a slots=1\n", "hostfile"),
        ("hostfile", "nonsense\n", "hostfile"),
        ("x.yaml", "title: t\nmodel: llama-3.1-8b\ngpus: 1\ngpu: h100-sxm-80gb\n", "recipe"),
        ("x.yaml", "schema: zerokit.planfile/1\n", "plan"),
        ("x.yaml", "zero_optimization: {stage: 1}\ntrain_batch_size: 1\n", "unknown"),
        ("x.txt", "hello\n", "unknown"),
    ],
)
def test_kinds_are_told_by_name_and_content(
    name: str, text: str, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = check(write(tmp_path, name, text), "--json", capsys=capsys)
    assert json.loads(out)["files"][0]["kind"] == kind
    if kind in ("unknown", "plan"):
        assert code == 2


@pytest.mark.parametrize(
    "body",
    [b"", b"\xff\xfe{\x00", b"{\xff}", b"[" * 100_000, b'{"a": ' * 5000, b"\x00", b"null", b"3", b"[]"],
)
def test_whatever_is_in_the_file_ends_with_2_and_no_traceback(
    body: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "ds.json"
    path.write_bytes(body)
    code, out, err = check(str(path), capsys=capsys)
    assert code == 2 and f"{path}" in out and "Traceback" not in out + err


def test_missing_files_and_devices(capsys: pytest.CaptureFixture[str]) -> None:
    for path in ("/nowhere/x.json", "/dev/zero"):
        code, out, _ = check(path, capsys=capsys)
        assert code == 2 and path in out


@pytest.mark.parametrize("name", ["\\0x", "x" * 5000, ".", "loop", ""])
def test_names_that_can_be_no_file(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "loop").symlink_to("loop")
    head = "distributed_type: DEEPSPEED\nnum_processes: 2\ndeepspeed_config:\n"
    for key in ("deepspeed_config_file", "deepspeed_hostfile"):
        path = write(tmp_path, "a.yaml", f'{head}  zero_stage: 2\n  {key}: "{name}"\n')
        code, out, err = check(path, capsys=capsys)
        assert code in (0, 2) and "Traceback" not in out + err
        assert max(map(len, out.splitlines())) < 400
    code, out, _ = check(str(tmp_path / "loop"), capsys=capsys)
    assert code == 2 and "cannot be read" in out


def test_torch_is_not_imported_and_the_folder_is_not_trusted(tmp_path: Path) -> None:
    path = write(tmp_path, "ds.json", BROKEN)
    for name in ("yaml", "torch", "click", "json", "deepspeed", "zerokit"):
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('{name}.py of the folder was imported')")
    code = (
        "import sys; sys.path = [p for p in sys.path if p]; from zerokit.cli import run; "
        f"code = run(['check', {path!r}]); "
        "print(code, sorted({'torch', 'deepspeed', 'pydantic', 'rich', 'jinja2'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "2 []"


@pytest.mark.parametrize(
    ("words", "title"), [((), "DeepSpeed"), (("deepspeed",), "DeepSpeed"), (("accelerate",), "ccelerate")]
)
def test_a_schema_is_of_a_deepspeed_file_unless_another_is_named(
    words: tuple[str, ...], title: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["check", "--schema", *words]) == 0
    assert title in json.loads(capsys.readouterr().out)["title"]
