"""Trainers' own files (axolotl, LLaMA-Factory, ms-swift, TRL, alignment-handbook) as a plan's options."""

NOT_MODELLED, UNKNOWN_KEY, KEPT = NOTES = (
    "trainer-file-not-modelled", "trainer-file-unknown-key", "trainer-file-kept",
)  # fmt: skip
"""Ids of the notes on what of such a file no answer counts, and on what of it the answer is not for."""
ENDINGS = (".yml", ".yaml", ".sh")
"""Of names that can only be such a file's; a JSON may be a model's."""
