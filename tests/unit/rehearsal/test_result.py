"""What a rehearsal says of the batches that it fed."""

from __future__ import annotations

from dataclasses import replace

from zerokit.rehearsal.result import Fed

FED = Fed(rows=4, tokens=2048, shortest=512, padding=0.125, precision="bf16", attention="sdpa", batches=2,
          limit=(2048, "--max_length"))  # fmt: skip


def test_what_was_fed_is_one_line() -> None:
    assert FED.text == (
        "4 rows × 2,048 tokens (the shortest: 512) a batch, 12% padding; bf16, sdpa; "
        "2 batches an optimizer step"
    )
    assert Fed.read(None, None) is None


def test_rows_far_below_the_scripts_limit_are_warned_of() -> None:
    assert FED.warnings == ()
    (shorter,) = replace(FED, tokens=400).warnings
    assert "400 tokens, and the script cuts rows at 2,048 (--max_length)" in shorter
    for limit in (FED.limit, None):  # a tokenizer that knows no word
        one = replace(FED, tokens=1, limit=limit)
        assert one.is_unlikely and "not the figures of its training" in one.warnings[0]
