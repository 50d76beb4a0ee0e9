"""Notes keep what they are, and nothing decides by the words of a sentence."""

from __future__ import annotations

import ast
import copy
import pickle
from collections.abc import Iterator
from pathlib import Path

import zerokit
from zerokit.notes import Note, notes_of, on_topic, with_id

PACKAGE = Path(zerokit.__file__).parent
_LOOK_INSIDE = ("startswith", "endswith", "removeprefix", "removesuffix", "partition", "rpartition", "split")
OTHERS_SENTENCES = {
    "catalog/gpus.py": "titles of GPUs, as vendors write them",
    "launcher/rank/oom_record.py": "PyTorch's",
    "launcher/verdict/rank_view.py": "faulthandler's",
    "launcher/verdict/why_broken.py": "DeepSpeed's",
    "report/words.py": "Python's",
    "strictload/yamltext.py": "PyYAML's",
    "linter/deepspeed/file.py": "a name of a key",
    "rehearsal/sections.py": "an entry of stubbed",
    "rehearsal/process/calls.py": "CPython's names of functions in C",
}


def _sentences(tree: ast.Module) -> Iterator[str]:
    """Texts of several words that a module looks for in others."""
    named = {
        target.id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name) and isinstance(node.value.value, str)
    }
    for node in ast.walk(tree):
        looked_for: list[ast.expr] = []
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            first = node.args[0]
            if node.func.attr in _LOOK_INSIDE:
                looked_for = first.elts if isinstance(first, ast.Tuple) else [first]
        elif isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
            looked_for = [node.left]
        for one in looked_for:
            parts = one.values if isinstance(one, ast.JoinedStr) else [one]
            text = "".join(str(part.value) for part in parts if isinstance(part, ast.Constant))
            text = named.get(one.id, "") if isinstance(one, ast.Name) else text
            if " " in text.strip():
                yield text


def test_nothing_decides_by_the_words_of_our_sentences() -> None:
    found = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if any(_sentences(ast.parse(path.read_text())))
    }
    assert found - OTHERS_SENTENCES.keys() == set()
    assert any(_sentences(ast.parse('BEGINS = "may run out"\nif text.startswith(BEGINS): pass')))


def test_a_note_is_its_text_and_keeps_what_it_is() -> None:
    note = Note("seq-len-assumed", "sequences of 2048 tokens: ⟨seq_len⟩ not given", "default", short="2048")
    same = [copy.deepcopy(note), pickle.loads(pickle.dumps(note))]  # noqa: S301 - made here
    assert all(one == note and one.to_dict() == note.to_dict() and one.short == "2048" for one in same)
    assert note.to_dict()["text"].endswith("--seq-len not given")
    waits = Note("trace-model", "to trace: this", template="to trace: {command}; then plan again")
    told = waits.with_command("zerokit estimate")
    assert (told, told.command) == ("to trace: `zerokit estimate`; then plan again", "zerokit estimate")
    assert note.with_command("zerokit estimate") is note
    notes = notes_of("script", ["it trains adapters", note])
    assert [one.id for one in notes] == ["script", "seq-len-assumed"]
    assert with_id(notes, "script") == notes[:1] and on_topic(notes, "default") == (note,)


def test_notes_stand_beside_the_texts_of_an_answer() -> None:
    answer = zerokit.plan(params="8b", gpus=2, gpu="h200").to_dict()
    texts = {note["id"]: note["text"] for note in answer["notes"]}
    assert {"seq-len-assumed", "global-batch", "precision"} <= texts.keys()
    assert [note["text"] for note in answer["notes"]] == [*answer["assumptions"], *answer["advice"]]
