"""What ZeRO-3 fetches with which module, in the order of a trace: one replay's view of the model."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cached_property, lru_cache
from itertools import accumulate
from math import inf

from zerokit.memory.fused_loss import FUSED, head_marks
from zerokit.memory.rank_model import RankModel


class Modules:
    """Parameters of each module by position, in the order that DeepSpeed numbers them, and the
    modules in the order of their fetches."""

    def __init__(self, model: RankModel) -> None:
        self.sizes = model.sizes
        self.trainable = tuple(p.trainable for p in model.parameters)
        self.by_name = {p.name: i for i, p in enumerate(model.parameters)}
        self.leaves = frozenset(model.profile.leaves)
        self.hooked = frozenset(name for kind, name in model.trace.marks_forward if kind == "fwd_pre")
        self.of: dict[str, tuple[int, ...]] = {}
        for name, index in self.by_name.items():
            self._add(name, index)
        for alias, name in model.profile.ties.items():
            if name in self.by_name:
                self._add(alias, self.by_name[name])
        self._move_head(model)
        for name, index in self.by_name.items():
            # peft asks lora_A for its precision before it runs it (tuners/lora/layer.py): that makes it an
            # external parameter of the layer around it (ZeROOrderedDict, parameter_offload.py:58)
            around, adapter, _ = name.partition(".lora_A.")
            if adapter:
                self._add(f"{around}.lora_A", index)
        # forward, then backward with the forwards that are run again in it
        forward = [name for kind, name in model.trace.marks_forward if kind == "fwd_pre"]
        backward = [name for kind, name in model.trace.marks_backward if kind in ("fwd_pre", "bwd_pre")]
        self.steps = forward + backward
        self.needed = [self.of.get(name, ()) for name in self.steps]
        self.queue = [(index, step) for step, needed in enumerate(self.needed) for index in needed]
        self._seen_from_modules = self._before(self._own_elements)
        self.gradients = tuple(  # marks of backward at which a gradient is complete, and whose
            (mark, self.by_name[name])
            for mark, (kind, name) in enumerate(model.trace.marks_backward)
            if kind == "grad"
        )
        self.saved_in_forward, self.saved_again = self._saved(model)
        # a pass through the base without a graph sets the counters of inputs to 0 (parameter_offload.py:437,
        # _post_backward_module_hook): the hook after backward runs for what is run again alone
        of_kind = {
            kind: {n for k, n in model.trace.marks_backward if k == kind} for kind in ("fwd_pre", "bwd_post")
        }
        never = of_kind["bwd_post"] - of_kind["fwd_pre"]
        self.never_released = never if model.reference == "base" else set[str]()
        self._leaf_uses: dict[str, list[int]] = {}
        self._uses: list[list[int]] = [[] for _ in self.sizes]
        for index, step in self.queue:
            self._uses[index].append(step)

    def elements_until_used(self, index: int, module: str, step: int) -> float:
        """Elements of the modules between a step and the next one that uses a parameter, as they count when
        ``module`` is released; infinite: none uses it any more.

        ``iter_params(module, recurse=z3_leaf_module(submodule_to_release))`` (``__params_to_release``): for
        most modules each counts what is its own, and a leaf module's parameters, which are those of modules
        in it, count nothing. For a leaf module each counts all that is in it, and uses what it is around.
        """
        is_leaf = self._is_leaf(module)
        before = self._seen_from_leaves if is_leaf else self._seen_from_modules
        uses = self._uses_around(module) if is_leaf else self._uses[index]
        position = bisect_left(uses, step)
        return before[uses[position]] - before[step] if position < len(uses) else inf

    def _before(self, elements: Callable[[str], int]) -> list[int]:
        """Elements of all modules before each step."""
        return [0, *accumulate(elements(name) for name in self.steps)]

    def _is_leaf(self, module: str) -> bool:
        return module.rpartition(".")[2] in self.leaves

    def _own_elements(self, module: str) -> int:
        if self._is_leaf(module):
            return self._inside[0][module]
        return sum(self.sizes[index] for index in self.of.get(module, ()))

    @cached_property
    def _inside(self) -> tuple[Counter[str], Counter[str]]:
        """Elements that are a module's own by their names, and all that are in it."""
        own: Counter[str] = Counter()
        within: Counter[str] = Counter()
        for name, index in self.by_name.items():
            own[name.rpartition(".")[0]] += self.sizes[index]
            for around in _around(name):
                within[around] += self.sizes[index]
        return own, within

    @cached_property
    def _seen_from_leaves(self) -> list[int]:
        return self._before(self._inside[1].__getitem__)

    def _uses_around(self, leaf: str) -> list[int]:
        if leaf not in self._leaf_uses:
            around = {leaf, *_around(leaf)}
            self._leaf_uses[leaf] = [step for step, name in enumerate(self.steps) if name in around]
        return self._leaf_uses[leaf]

    def _move_head(self, model: RankModel) -> None:
        """A fused loss reads the head's weight without running the head: that makes it an external parameter
        of the model around it (ZeROOrderedDict, parameter_offload.py:58)."""
        marks = head_marks(model) if model.loss in FUSED else None
        if marks is not None:
            for index in self.of.pop(marks.name, ()):
                self._add(f"{marks.name}", index)

    def _saved(self, model: RankModel) -> tuple[dict[str, list[int]], dict[str, list[int]]]:
        """Weights that modules save for their backward in such a way that they outlive a release: in forward,
        and when they run again in backward.

        Views do. Under the hooks of torch/utils/checkpoint.py on what is saved every weight is one, but not
        those of frozen linear layers (linear.py:92 is a function in Python), and biases do not count.
        """
        kinds = tuple(f".{name}" for name in model.profile.views)
        stacks = tuple(kind.rpartition(".")[0] for kind in kinds)
        # peft makes what it adds to stacked weights of views of its factors (_LoraFactorsProxy,
        # tuners/lora/layer.py:2323, 0.21), but of copies where they are in another precision
        views = []
        for parameter in model.parameters:
            own, adapter, _ = parameter.name.replace(".base_layer.", ".").partition(".lora_")
            is_copied = adapter and parameter.element_bytes
            views.append(not is_copied and own.endswith(stacks if adapter else kinds))
        again = list(views)
        if model.checkpointing == "full":
            matrices = [len(p.shape) > (1 if p.trainable else 2) for p in model.parameters]
            again = [view or matrix for view, matrix in zip(views, matrices, strict=True)]
        if model.checkpointing in ("full", "reentrant"):  # nothing is saved the first time
            views = [False] * len(views)
        with_backward = {name for kind, name in model.trace.marks_backward if kind == "bwd_post"}

        def of_modules(chosen: list[bool]) -> dict[str, list[int]]:
            return {name: [i for i in self.of.get(name, ()) if chosen[i]] for name in with_backward}

        return of_modules(views), of_modules(again)

    def saved_by(self, name: str) -> int:
        """The weight of the operator that gives this gradient: its own, or that of a bias beside it."""
        module, _, kind = name.rpartition(".")
        return self.by_name.get(f"{module}.weight" if kind == "bias" else name, self.by_name[name])

    def _hooked(self, module: str) -> str:
        """The module itself, or the leaf module around it, which has the hooks."""
        if self.leaves and module not in self.hooked:
            parts = module.split(".")
            for number, part in enumerate(parts, 1):
                around = ".".join(parts[:number])
                if part in self.leaves and around in self.hooked:
                    return around
        return module

    def _add(self, name: str, index: int) -> None:
        module = self._hooked(name.rpartition(".")[0])
        indexes = self.of.get(module, ())
        self.of[module] = (
            (*indexes, index) if not indexes or indexes[-1] < index else tuple(sorted({*indexes, index}))
        )


def _around(name: str) -> Iterator[str]:
    """The modules around a module or parameter."""
    while name:
        name = name.rpartition(".")[0]
        yield name


@lru_cache(maxsize=64)
def modules_of(model: RankModel) -> Modules:
    """The modules of what a rank holds; cached."""
    return Modules(model)
