"""Trainers' own files (axolotl, LLaMA-Factory, ms-swift, TRL, alignment-handbook) as a plan's options."""

NOT_MODELLED, UNKNOWN_KEY = NOTES = ("trainer-file-not-modelled", "trainer-file-unknown-key")
"""Ids of the notes on what no answer for such a file counts."""
ENDINGS = (".yml", ".yaml", ".sh")
"""Of names that can only be such a file's; a JSON may be a model's."""
