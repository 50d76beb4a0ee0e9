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


def test_text_names_location_consequence_fix_and_source(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, "ds.json", BROKEN)
    code, out, _ = check(path, capsys=capsys)
    assert code == 2
    assert f"{path}:6:5: error: DeepSpeed refuses the file: zero_optimization has no key 'overlap_com'" in out
    assert "fix: did you mean 'overlap_comm'?" in out
    assert "source: DeepSpeed 0.19.8, runtime/config.py:134" in out
    code, out, _ = check(write(tmp_path, "good.json", GOOD), capsys=capsys)
    assert code == 0 and "no problems" in out


def test_json_is_one_object_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, "ds.json", BROKEN)
    code, out, _ = check(path, "--json", capsys=capsys)
    body = json.loads(out)
    assert (code, body["schema"], body["ok"]) == (2, "zerokit.check/1", False)
    assert body["files"] == [{"path": path, "kind": "deepspeed", "ok": False}]
    finding = next(item for item in body["findings"] if item["rule"] == "number-as-text")
    assert (finding["line"], finding["column"], finding["severity"], finding["fixable"]) == (
        2,
        3,
        "error",
        True,
    )


def test_github_annotations_escape_what_they_must(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, "a,b.json", '{\n "train_micro_batch_size_per_gpu": 1,\n "50%_done": 1\n}')
    _, out, _ = check(path, "--format", "github", capsys=capsys)
    line = out.strip()
    assert line.startswith("::warning file=") and "a%2Cb.json,line=3,col=2,title=unknown-key::" in line
    assert "50%25_done" in line


def test_warnings_fail_only_when_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, "ds.json", {**GOOD, "zero_optimization": {"stage": 2, "offload_optimizer": {}}})
    assert check(path, capsys=capsys)[0] == 0
    assert check(path, "--strict", capsys=capsys)[0] == 2


def test_world_size_is_for_batch_arithmetic(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, "ds.json", {**GOOD, "train_batch_size": 8, "gradient_accumulation_steps": 2})
    assert check(path, "--world-size", "4", capsys=capsys)[0] == 0
    code, out, _ = check(path, "--gpus", "8", capsys=capsys)
    assert code == 2 and "train_batch_size 8 is not 1 (micro-batch) × 2 (accumulation) × 8" in out
    for wrong in (
        ("--world-size", "0"),
        ("--gpus", "8", "--nodes", "3"),
        ("--world-size", "2", "--gpus", "4"),
    ):
        assert check(path, *wrong, capsys=capsys)[0] == 2


def test_gpu_and_model_are_looked_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, "ds.json", GOOD)
    code, out, _ = check(path, "--gpu", "v100-32gb", capsys=capsys)
    assert code == 2 and "no bf16 in hardware" in out
    assert check(path, "--gpu", "h100-sxm-80gb", capsys=capsys)[0] == 0
    code, _, err = check(path, "--vram", "80GiB", "--seq-len", "x", capsys=capsys)
    assert code == 2 and "--vram, --seq-len: needed only to tell whether it fits; name the model" in err


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


def test_accelerate_yaml_is_checked_with_the_json_it_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, "ds.json", {**GOOD, "train_batch_size": 6, "gradient_accumulation_steps": 1})
    yaml_path = write(
        tmp_path,
        "a.yaml",
        "distributed_type: DEEPSPEED\nnum_processes: 4\ndeepspeed_config:\n"
        "  deepspeed_config_file: ds.json\n  zero3_init_flag: true\n",
    )
    code, out, _ = check(yaml_path, "--notes", capsys=capsys)
    assert code == 2
    assert "ds.json:" in out and "batch-arithmetic" in out
    assert "a.yaml:5:3: note: zero3_init_flag does nothing at stage 2" in out


def test_a_path_that_is_not_there_is_shown_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    absolute = "/home/somebody/work/experiments/zerokit-plan/ds_config.accelerate.json"
    relative = absolute.removeprefix("/home/")
    for path, words in (
        (absolute, "does not exist on this machine, and Accelerate stops without it"),
        (relative, "is not here, nor beside this file: Accelerate looks for it where it is started"),
    ):
        text = f"distributed_type: DEEPSPEED\ndeepspeed_config:\n  deepspeed_config_file: {path}\n"
        _, out, _ = check(write(tmp_path, "a.yaml", text), capsys=capsys)
        assert f"warning: '{path}' {words} [accelerate-config-file-missing]" in out
    _, out, _ = check(write(tmp_path, "a.yaml", text.replace("somebody", "s" * 300)), capsys=capsys)
    assert "sss…" in out and "ds_config.accelerate.json' is not here" in out


def test_accelerate_yaml_is_checked_with_the_hostfile_it_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hosts = write(tmp_path, "hosts", "node-1 slots=4\nnode-2 slots=2\n")
    yaml_path = write(
        tmp_path,
        "a.yaml",
        "distributed_type: DEEPSPEED\nnum_machines: 2\nnum_processes: 8\ndeepspeed_config:\n"
        f"  zero_stage: 2\n  deepspeed_hostfile: {hosts}\n",
    )
    code, out, _ = check(yaml_path, capsys=capsys)
    assert code == 2 and f"{hosts}:1:1: error: 6 slots for 8 ranks" in out
    assert f"{hosts}:2:1: warning: node-2 has 2 slots" in out


def test_conflict_stage_3_without_init(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ds = write(tmp_path, "ds.json", {**GOOD, "zero_optimization": {"stage": 3}})
    yaml_path = write(
        tmp_path,
        "a.yaml",
        f"distributed_type: DEEPSPEED\nnum_processes: 4\ndeepspeed_config:\n"
        f"  deepspeed_config_file: {ds}\n  zero3_init_flag: false\n",
    )
    assert "accelerate-zero3-init-off" in check(yaml_path, "--notes", capsys=capsys)[1]


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


@pytest.mark.parametrize(("line", "location"), [("model: llama-9", "2:1"), ("gpu: h2000", "2:1")])
def test_recipes_name_what_exists(
    line: str, location: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = "params: 8b\ngpus: 8\n" if line.startswith("gpu") else "gpus: 8\n"
    path = write(tmp_path, "r.yaml", f"title: t\n{line}\n{more}")
    code, out, _ = check(path, capsys=capsys)
    assert code == 2 and f"{path}:{location}: error:" in out and "did you mean" in out


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


JOB = "#!/bin/bash\n#SBATCH --nodes=2\nsrun torchrun \\\n  t.py\n"


@pytest.mark.parametrize(
    ("name", "text"),
    [("job.sh", JOB), ("job.slurm", JOB), ("job", JOB), ("README.md", "# a\n\nas follows: one: two\n")],
)
def test_a_job_or_a_page_is_no_file_that_check_knows(
    name: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The YAML reader's words on a shell script help nobody."""
    code, out, _ = check(write(tmp_path, name, text), capsys=capsys)
    assert (
        code == 2
        and "is neither a DeepSpeed JSON, an accelerate YAML, a hostfile, a plan nor a recipe" in out
    )


def test_a_misspelt_name_is_answered_with_the_file_beside_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, "ds_config.json", GOOD)
    code, out, _ = check(str(tmp_path / "ds_confg.json"), capsys=capsys)
    assert code == 2 and f"there is no such file; did you mean {tmp_path / 'ds_config.json'}?" in out
    assert "no such file [unreadable]" in check(str(tmp_path / "other.yaml"), capsys=capsys)[1]


def test_an_accelerate_yaml_without_deepspeed_is_said_to_be_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "distributed_type: {}\nnum_processes: 4\ncompute_environment: LOCAL_MACHINE\n"
    path = write(tmp_path, "ddp.yaml", text.format("MULTI_GPU"))
    assert "(accelerate, MULTI_GPU: without DeepSpeed): no problems" in check(path, capsys=capsys)[1]
    path = write(tmp_path, "ds.yaml", text.format("DEEPSPEED"))
    assert "(accelerate)" in check(path, capsys=capsys)[1]


def test_estimate_leads_to_check_where_a_yaml_is_no_deepspeed_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, "plain.yaml", "stage: 3\n")
    assert run(["estimate", "--model", "gpt2", "--gpus", "1", "--gpu", "h200", "--deepspeed", path]) == 2
    assert f"`zerokit check {path}` says more" in " ".join(capsys.readouterr().err.split())


def test_a_yaml_of_one_process_is_not_told_to_name_more_of_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """accelerate launch starts one of distributed_type NO, whatever num_processes says."""
    text = "compute_environment: LOCAL_MACHINE\ndistributed_type: 'NO'\nnum_processes: {}\n"
    one, two = (write(tmp_path, f"{count}.yaml", text.format(count)) for count in (1, 2))
    assert "no problems" in check(one, capsys=capsys)[1]
    for asked, said in (
        ((one, "--world-size", "8"), "the job has 8 ranks"),
        ((two,), "ignores num_processes 2"),
    ):
        out = check(*asked, capsys=capsys)[1]
        assert (
            f"2:1: warning: distributed_type is NO: accelerate launch starts one process, and {said}" in out
        )
        assert "fix: set distributed_type to DEEPSPEED, FSDP or MULTI_GPU" in out
