"""Which known name was meant by a wrong one, and when that leaves no doubt."""

from __future__ import annotations

import contextlib
import difflib
import functools
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_CUTOFF = 0.78  # difflib's ratio from which a key is suggested
_ALIKE = 0.6  # the same for names, of which there are more, and longer ones
_LONG_WORD = 6
_SHORTEST_TYPO = 4
_LONGEST = 200  # letters of a name that is compared with others
_MOST_SLIPS = 3
_FEWEST_WORDS = 2
_LONG_BEGINNING = 8
_DIGITS = re.compile(r"\d+")

_ELSEWHERE: Mapping[str, tuple[str, ...]] = {
    "train_micro_batch_size_per_gpu": (
        "micro_batch_size", "micro_batch_size_per_gpu", "per_device_train_batch_size",
        "train_micro_batch_size",
    ),
    "train_batch_size": ("batch_size", "global_batch_size"),
    "gradient_accumulation_steps": ("gradient_accumulation", "grad_accum_steps", "accumulation_steps"),
    "gradient_clipping": ("max_grad_norm", "grad_clip", "gradient_clip", "clip_gradients", "clip_grad"),
    "zero_optimization": ("zero", "zero_config"),
    "stage": ("zero_stage",),
    "scheduler": ("lr_scheduler",),
    "lr": ("learning_rate",),
    "total_num_steps": ("total_steps",),
    "warmup_num_steps": ("warmup_steps",),
    "nvme_path": ("path",),
    "pin_memory": ("pinned_memory",),
    "wall_clock_breakdown": ("wall_clock",),
    "tensor_parallel": ("autotp",),
    "autotp_size": ("tp_size",),
    "intra_op_parallelism": ("thread_count",),
    "num_processes": ("num_gpus", "nproc_per_node"),
    "num_machines": ("num_nodes",),
    "machine_rank": ("node_rank",),
    "main_process_ip": ("master_addr", "main_process_addr"),
    "main_process_port": ("master_port",),
}  # fmt: skip
_SYNONYMS = {name: key for key, names in _ELSEWHERE.items() for name in names}
"""What a key of another tool is called here."""

_ONE_MEANING = frozenset({"zero_stage", "learning_rate", "pinned_memory"})
"""Synonyms that mean the same thing in every tool."""


def alternatives(names: Sequence[str]) -> str:
    """``a, b or c``."""
    *first, last = names
    return f"{', '.join(first)} or {last}" if first else last


def alike(text: str, names: Iterable[str], most: int = 1) -> list[str]:
    """Up to ``most`` long names (recipes, rules) that ``text`` is like, the likest first. For short names
    there is :func:`misspelt`, and for keys of a file :func:`nearest`, which are stricter."""
    return difflib.get_close_matches(text, list(names), n=most, cutoff=_ALIKE)


def much_alike(text: str, names: Iterable[str]) -> list[str]:
    """The likest name, if ``text`` has nearly all of its letters in order: ``rtx4909`` for ``rtx-4090``."""
    return difflib.get_close_matches(text, list(names), n=1, cutoff=_CUTOFF)


def misspelt(text: str, names: Iterable[str], most: int = 1, *, unfinished: bool = False) -> list[str]:
    """Up to ``most`` of the names that ``text`` is with a slip of the finger; all equally near.

    One letter off, two from eight letters on, three from twelve on; or the beginning of the name.

    Args:
        text: what was typed.
        names: the names that there are.
        most: how many at most.
        unfinished: compare with the first words of a name too, as ``h20`` of ``h20-96gb``.
    """
    folded = fold(text).replace(" ", "")
    allowed = min(max(1, len(folded) // 4), _MOST_SLIPS)
    distances: dict[str, int] = {}
    for name in names:
        words = name.split("-")
        beginnings = {"".join(words[:end]) for end in range(1, len(words))} if unfinished else set()
        forms = [fold(name), *(form for form in sorted(beginnings) if _DIGITS.search(form))]
        slips = [distance(folded, form) for form in forms if abs(len(form) - len(folded)) <= allowed]
        if len(folded) >= _SHORTEST_TYPO and forms[0].startswith(folded):
            slips.append(1)
        if slips and min(slips) <= allowed:
            distances[name] = min(slips)
    return [name for name in distances if distances[name] == min(distances.values())][:most]


def by_words(text: str, names: Iterable[str], most: int = 2) -> list[str]:
    """Up to ``most`` names that are ``text`` but for one word more or less, or that ``text`` goes on from.

    ``per_device_batch_size`` is ``per_device_train_batch_size`` so, and ``global_batchsize`` is
    ``global_batch``; of spellings of one name the first.
    """
    typed = set(_words(text))
    found: dict[str, str] = {}
    for name in names:
        words = set(_words(name))
        is_near = len(typed ^ words) == 1 and len(typed & words) >= _FEWEST_WORDS
        goes_on = len(fold(name)) >= _LONG_BEGINNING and fold(text).startswith(fold(name))
        if is_near or goes_on:
            found.setdefault(fold(name), name)
    return list(found.values())[:most]


def _words(name: str) -> list[str]:
    return name.lower().strip("-").replace("-", "_").split("_")


def fold(word: str) -> str:
    """A word without what people get wrong first: case, hyphens, underscores."""
    return word.lower().replace("-", "").replace("_", "")


MOST_SEARCHES = 100
"""Names of a file that are compared with all known ones; of further ones only another case, order or number
of their words is seen."""
_searches_left: ContextVar[int | None] = ContextVar("searches_left", default=None)


@contextlib.contextmanager
def few_searches() -> Iterator[None]:
    """Inside, :func:`nearest` looks for misspelt names :data:`MOST_SEARCHES` times: a file of 100,000 unknown
    keys takes seconds, not minutes."""
    token = _searches_left.set(MOST_SEARCHES)
    try:
        yield
    finally:
        _searches_left.reset(token)


def may_search() -> bool:
    """Whether :func:`nearest` still looks for misspelt names."""
    return _searches_left.get() != 0


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known name that ``word`` was most likely meant to be.

    Names of two different things are never each other's suggestion, however alike they look
    (``use_gpu`` and ``use_cpu``, ``tp_config`` and ``fp8_config``).
    """
    if len(word) > _LONGEST:
        return None
    names = _Names.of(tuple(known))
    for form in _forms(word):
        if form in names.by_form:
            return names.by_form[form]
    left = _searches_left.get()
    if left is not None:
        if not left:
            return None
        _searches_left.set(left - 1)
    lower = word.lower()
    for close in difflib.get_close_matches(lower, list(names.lower), n=3, cutoff=_CUTOFF):
        if _may_be(lower, close, names.words):
            return names.lower[close]
    return None


@dataclass(frozen=True, slots=True)
class _Names:
    """Known names by what :func:`nearest` looks for."""

    by_form: Mapping[tuple[str, ...], str]
    words: frozenset[str]
    lower: Mapping[str, str]

    @staticmethod
    @functools.lru_cache(maxsize=256)
    def of(known: tuple[str, ...]) -> _Names:
        """Names of a table."""
        names = sorted(known, reverse=True)  # the first of those alike is what stays
        by_form = {_forms(name)[number]: name for number in (2, 1, 0) for name in names}
        words = frozenset(part for name in names for part in name.lower().split("_"))
        return _Names(by_form, words, {name.lower(): name for name in names})


def _forms(name: str) -> tuple[tuple[str, ...], ...]:
    """A name without case and hyphens; its words in any order; those in any order and number: of ``gpus_id``
    those of ``gpu_ids``."""
    words = name.split("_")
    return (
        ("", fold(name)),
        ("words", *sorted(words)),
        ("singular", *sorted(part.removesuffix("s") for part in name.lower().split("_"))),
    )


def standing_in(word: str, known: Iterable[str]) -> str | None:
    """The longest known name that stands whole in ``word``, as ``fp16`` in ``ds_fp16``."""
    padded = f"_{word.lower().strip()}_"
    names = [name for name in known if len(name) >= _SHORTEST_TYPO and f"_{name.lower()}_" in padded]
    return max(names, key=len, default=None)


def _may_be(wrong: str, right: str, words: Collection[str]) -> bool:
    """Whether the difference is one of spelling, not of words."""
    if _DIGITS.findall(wrong) != _DIGITS.findall(right):
        return False
    wrong_parts, right_parts = wrong.split("_"), right.split("_")
    if len(wrong_parts) != len(right_parts):
        return True
    for wrong_part, right_part in zip(wrong_parts, right_parts, strict=True):
        if wrong_part == right_part:
            continue
        is_a_word = wrong_part in words and not right_part.startswith(wrong_part)
        is_a_word = is_a_word and wrong_part != f"{right_part}s"
        allowed = 2 if max(len(wrong_part), len(right_part)) >= _LONG_WORD else 1
        if (
            is_a_word
            or min(len(wrong_part), len(right_part)) < 3
            or distance(wrong_part, right_part) > allowed
        ):
            return False
    return True


def synonym(key: str, known: Mapping[str, Any]) -> str | None:
    """The known key that ``key`` is called elsewhere, if there is one."""
    replacement = _SYNONYMS.get(key.lower())
    if replacement is None and f"stage3_{key}" in known:
        replacement = f"stage3_{key}"
    return replacement if replacement in known else None


def leaves_no_doubt(wrong: str, right: str, names: Iterable[str]) -> bool:
    """Whether ``wrong`` can mean nothing but ``right`` among the known names.

    True for another case or other hyphens, for one letter left out, doubled or swapped in a word of
    four letters or more where no other name is near, and for a few words that mean the same everywhere.
    A replaced letter may make another word, so that it is left to people.
    """
    if wrong.lower() in _ONE_MEANING and _SYNONYMS[wrong.lower()] == right:
        return True
    if fold(wrong) == fold(right):
        return sum(fold(name) == fold(wrong) for name in names) == 1
    if _DIGITS.findall(wrong) != _DIGITS.findall(right):
        return False
    if any(name != right and distance(fold(wrong), fold(name)) <= 2 for name in names):
        return False
    wrong_parts, right_parts = wrong.lower().split("_"), right.lower().split("_")
    if len(wrong_parts) != len(right_parts):
        return False
    unlike = [(w, r) for w, r in zip(wrong_parts, right_parts, strict=True) if w != r]
    if len(unlike) != 1:
        return False
    left, other = unlike[0]
    if len(other) < _SHORTEST_TYPO:
        return False
    replaced = len(left) == len(other) and sorted(left) != sorted(other)
    plural = other in (f"{left}s", f"{left}es")
    return plural or (distance(left, other) == 1 and not replaced)


def distance(left: str, right: str) -> int:
    """How many letters are to be added, taken, replaced or swapped with their neighbour."""
    before: list[int] = []
    above = list(range(len(right) + 1))
    for row, a in enumerate(left, start=1):
        current = [row]
        for column, b in enumerate(right, start=1):
            cost = min(above[column] + 1, current[-1] + 1, above[column - 1] + (a != b))
            if row > 1 and column > 1 and a == right[column - 2] and left[row - 2] == b:
                cost = min(cost, before[column - 2] + 1)
            current.append(cost)
        before, above = above, current
    return above[-1]


def folder_alike(folder: Path, *, holding: str = "") -> Path | None:
    """The folder beside ``folder`` that is called much like it and, if a file is named, holds it."""
    with contextlib.suppress(OSError):
        folders = (one for one in folder.parent.iterdir() if one.is_dir() and (one / holding).exists())
        names = sorted(one.name for one in folders)
        if similar := misspelt(folder.name, names) or alike(folder.name, names):
            return folder.with_name(similar[0])
    return None
