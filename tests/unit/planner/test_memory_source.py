"""Which modules adapters may be put on, of models with a trace and without."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.command import call, move_elsewhere


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    move_elsewhere(tmp_path, monkeypatch)


def test_adapters_go_on_modules_that_the_model_has(capsys: pytest.CaptureFixture[str]) -> None:
    common = ("--model", "llama-3.1-8b", "--gpus", "1", "--gpu", "h200", "--method", "lora", "--lora-targets")
    assert call(capsys, "plan", *common, "q_proj,self_attn.v_proj")[0] == 0
    for targets, words in (("q_proj,v_prj", "v_prj: llama-3.1-8b has no such module; use some of "
                            "embed_tokens, q_proj, k_proj"), (",", "names no module")):  # fmt: skip
        code, _, err = call(capsys, "plan", *common, targets)
        assert code == 2 and "--lora-targets" in err and words in err


def test_a_misspelt_module_is_refused_beside_a_right_one_in_closed_form_too(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Of mistral-7b-v0.1 there is no trace; heads, tables and one layer's modules may be meant."""
    common = ("plan", "--gpus", "1", "--gpu", "rtx-3090", "--method", "qlora", "--explain", "--lora-targets")
    named = (*common[:1], "--model", "mistral-7b-v0.1", *common[1:])
    for targets in ("v_prj", "q_proj,v_prj", "q_proj,layers.3.self_attn.vproj"):
        code, _, err = call(capsys, *named, targets)
        wrong = targets.rpartition(",")[2]
        assert (
            code == 2 and f"--lora-targets {wrong}: mistral-7b-v0.1 has no such module; use some of " in err
        )
        assert "q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj, or all-linear" in err
    for other in ("lm_head", "embed_tokens", "layers.3.self_attn.v_proj"):
        code, out, _ = call(capsys, *named, f"q_proj,{other}")
        assert code == 0 and f"adapters on {other} not counted" in " ".join(out.split())
    stand_in = (
        *common[:1],
        "--params",
        "14b",
        *common[1:],
    )  # whatever it is, it is not the model named for it
    assert call(capsys, *stand_in, "q_proj,c_proj")[0] == 0
