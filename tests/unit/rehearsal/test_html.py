"""A rehearsal's page says what was rehearsed: command, model, plan, date, versions."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from tests.support.report_pages import REHEARSAL, REHEARSAL_PAGE
from zerokit import __version__
from zerokit.rehearsal.html import render_html


def rows_of(page: str) -> dict[str, str]:
    """Name and value of the table of what was rehearsed."""
    table = page.partition('aria-label="What was rehearsed"')[2].partition("</table>")[0]
    cells = re.findall(r"<th[^>]*>(.*?)</th><td[^>]*>(.*?)</td>", table)
    return dict(cells)


def test_what_was_rehearsed_is_said() -> None:
    page = render_html(REHEARSAL, REHEARSAL_PAGE)
    assert rows_of(page) == {
        "script": "train.py",
        "command": "zerokit rehearse --gpus 8 --gpu h200 train.py --deepspeed ds_config.json",
        "model": "LlamaForCausalLM, 8.03B parameters",
        "method": "full",
        "made": "2026-09-21 14:13 UTC",
        "zerokit": __version__,
        "torch": "2.11.0",
        "deepspeed": "0.19.8",
    }
    title = "train.py, LlamaForCausalLM, 8.03B parameters on 8 × h200 · zerokit rehearsal"
    assert f"<title>{title}</title>" in page


def test_a_plan_names_the_model_that_it_is_for(tmp_path: Path) -> None:
    (tmp_path / "plan.yaml").write_text("request: {model: llama-3.1-8b, method: lora}\n")
    done = replace(REHEARSAL, model=None)
    for plan in (tmp_path, tmp_path / "plan.yaml"):
        rows = rows_of(render_html(done, replace(REHEARSAL_PAGE, plan=str(plan))))
        assert rows["plan"] == str(plan)
        assert (rows["model"], rows["method"]) == ("llama-3.1-8b, 8.03B parameters", "lora")


def test_a_model_of_which_nothing_is_known_is_not_named() -> None:
    page = render_html(replace(REHEARSAL, model=None, engine=None), REHEARSAL_PAGE)
    assert not {"model", "method", "plan"} & rows_of(page).keys()
    assert "<title>train.py on 8 × h200 · zerokit rehearsal</title>" in page


def test_its_own_name_is_better_than_its_class() -> None:
    model = {"config": {"architectures": ["LlamaForCausalLM"], "_name_or_path": "some/llama"}}
    rows = rows_of(render_html(replace(REHEARSAL, model=model), REHEARSAL_PAGE))
    assert rows["model"] == "some/llama, 8.03B parameters"
