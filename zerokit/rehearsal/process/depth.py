"""Models with few of their layers, where the others are alike and nothing new would be seen in them."""

from __future__ import annotations

import contextlib
import copy
import dis
import functools
import gc
import itertools
import json
import sys
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from types import CodeType
from typing import Any

import torch
from torch.nn.modules import module as everywhere

from zerokit.instrument.engine_facts import elements
from zerokit.rehearsal.process.endings import NeedsWhole
from zerokit.rehearsal.process.guesses import is_library, short
from zerokit.rehearsal.result import WHOLE

_OURS = str(Path(__file__).resolve().parents[2])
_COUNT = "num_hidden_layers"
_FEWEST, _FEWEST_OF_COURSES = 9, 24
"""Of fewer layers all are built: they take no longer than a few of them at two depths, with what the script
does beside them, or with the comparison of courses."""

_ADAPTED = ("target_modules", "exclude_modules", "modules_to_save", "target_parameters")
_BY_LAYER = ("layers_to_transform", "rank_pattern", "alpha_pattern")
"""What a configuration of PEFT's says of which modules, and of which layers."""
_ALIKE = frozenset(
    ("torch", "transformers", "peft", "trl", "accelerate", "deepspeed", "bitsandbytes", "liger_kernel")
)
"""Whose code treats the layers of a model alike, unless its configuration says otherwise."""
_NAMING = (
    "named_parameters", "named_modules", "modules", "apply", "named_children", "children", "get_submodule",
    "get_parameter", "named_buffers", "state_dict",
)  # fmt: skip
_IN_ORDER = ("parameters", "buffers")
_PASSING = (filter, map, itertools.chain)
"""Iterators that do not tell values apart by their places among them."""


@functools.cache
def _treats_alike(file: str) -> bool:
    if file.startswith(_OURS):
        return True
    if not is_library(file):  # a checkout of one of them, too, with scripts beside it
        return False
    installed = short(file)
    return installed == file or installed.partition("/")[0] in _ALIKE  # the first: Python's own


def watch(depth: Depth) -> None:
    """See who asks for layers by their numbers or names."""

    def watched(name: str, real: Any) -> Any:
        @functools.wraps(real)
        def asked(self: Any, *args: Any, **kwargs: Any) -> Any:
            if depth.of and not torch.compiler.is_dynamo_compiling():
                file = sys._getframe(1).f_code.co_filename
                if name in _IN_ORDER and not _treats_alike(file):
                    tensors = real(self, *args, **kwargs)
                    return _Handed(tensors, functools.partial(depth.asked, name, file), file)
                depth.asked(name, file)
            return real(self, *args, **kwargs)

        return asked

    for name in (*_NAMING, *_IN_ORDER):
        setattr(torch.nn.Module, name, watched(name, getattr(torch.nn.Module, name)))
    layers: Any = torch.nn.ModuleList

    class Layers(dict[str, Any]):
        """What a list of modules holds."""

    class Group(list[Any]):
        """What a group of an optimizer trains."""

    of_each = ("__getitem__", "__iter__")
    for kind, names in ((layers, of_each), (Layers, (*of_each, "items", "values")), (Group, of_each[:1])):
        for name in names:
            setattr(kind, name, watched(name, getattr(kind, name)))
    make, add = layers.__init__, torch.optim.Optimizer.add_param_group

    @functools.wraps(make)
    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        if depth.of:
            self.__dict__["_modules"] = Layers(self._modules)

    @functools.wraps(add)
    def added(self: Any, group: Any) -> None:
        add(self, group)
        if depth.of:
            self.param_groups[-1]["params"] = Group(self.param_groups[-1]["params"])

    layers.__init__ = made
    setattr(torch.optim.Optimizer, add.__name__, added)


class _Handed:
    """Tensors that code asks for in their order, and passes on to a library: an optimizer's, as a rule. The
    first may be looked at, and what all have be counted. ``asked``: called where they are handed to code that
    may tell them apart by their places. ``file``: of the code that asks."""

    def __init__(self, tensors: Iterator[torch.Tensor], asked: Callable[[], None], file: str) -> None:
        self._tensors, self._asked, self._file = tensors, asked, file
        self._taken = 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        return self

    def __next__(self) -> torch.Tensor:
        self._taken += 1
        taking = sys._getframe(1).f_code
        by_script = taking.co_filename == self._file and not _yields_no_item(taking)
        if self._taken > 1 and (by_script or (self._taken == 2 and _is_counted(self))):
            self._asked()
        return next(self._tensors)


def _is_counted(items: Any) -> bool:
    """Whether an iterator over them tells them apart by their places."""
    around = [items]
    for one in around:
        around += [its for its in gc.get_referrers(one) if type(its) in _PASSING]
    kinds = {type(its) for its in gc.get_referrers(*around)} - set(_PASSING)
    return any(kind in (enumerate, zip) or kind.__module__ == "itertools" for kind in kinds)


@functools.cache
def _yields_no_item(code: CodeType) -> bool:
    """Whether it is a generator expression that tells something of each item, as its size."""
    if code.co_name != "<genexpr>":
        return False
    steps = [step.opname for step in dis.get_instructions(code)]
    return not steps[steps.index("YIELD_VALUE") - 1].startswith("LOAD_FAST")


def _are_alike(model: torch.nn.Module, count: int) -> bool:
    """Whether the layers of a model are made alike from the second on, but for their number."""
    stacks = [part for part in model.modules() if isinstance(part, torch.nn.ModuleList)]
    made = [[_made(layer) for layer in stack] for stack in stacks if len(stack) == count]

    def alike(layers: list[dict[Any, Any]], number: int) -> bool:
        one, other = layers[1], layers[number]
        return one.keys() == other.keys() and all(
            other[key] == value or (value, other[key]) == (1, number) for key, value in one.items()
        )

    return bool(made) and all(alike(layers, number) for layers in made for number in range(2, count))


def _made(layer: torch.nn.Module) -> dict[Any, Any]:
    """What a layer is made of: its modules, their parameters and their settings."""
    result: dict[Any, Any] = {}
    for name, module in layer.named_modules():
        result[name] = type(module)
        for key, value in vars(module).items():
            if isinstance(value, bool | str | int | float):
                result[name, key] = value
        for tensors in (module._parameters, module._buffers):
            for key, tensor in tensors.items():
                result[name, key] = None if tensor is None else (tensor.shape, tensor.dtype)
    return result


class Depth:
    """How many layers models are built with.

    Attributes:
        layers: so many of a decoder's; None: all.
        of: how many those have that were built with fewer.
        is_course: whether these layers alone tell what all take. ``is_replayed``: they do not, as an engine
            divides all of them at once, and a replay of the engine says the rest.
        bytes: of the weights of these models with all layers, as they are loaded.
        probes: whether the model that is built now is one to look at.
    """

    def __init__(self) -> None:
        self.layers: int | None = None
        self.of: set[int] = set()
        self.is_course = self.is_replayed = False
        self.probes = False
        self.bytes = 0
        self._whole: dict[str, Any] = {}
        self._further: tuple[int, int] = (0, 0)

    @contextlib.contextmanager
    def probing(self) -> Iterator[None]:
        """A model with all layers is built, to look at."""
        self.probes = True
        try:
            yield
        finally:
            self.probes = False

    def cut(self, config: Any, build: Callable[[Any], torch.nn.Module]) -> None:
        """Take layers off a model's configuration before it is built from it.

        Models of several parts keep theirs: an encoder's layers are not the decoder's. So do models of which
        the configuration says something else of one layer than of another, or whose layers from the second on
        are not alike.

        Args:
            build: the model of a configuration.

        Raises:
            NeedsWhole: models have unlike numbers of layers.
        """
        count = getattr(config, _COUNT, None)
        is_whole = getattr(config, "sub_configs", None) or getattr(config, "is_encoder_decoder", False)
        is_course = self.is_course and not self.is_replayed
        fewest = _FEWEST_OF_COURSES if is_course else _FEWEST
        if self.layers is None or not isinstance(count, int) or count < fewest or is_whole:
            return
        of_each = {
            name: value
            for name, value in vars(config).items()
            if isinstance(value, list) and len(value) == count
        }
        if any(one != value[0] for value in of_each.values() for one in value):
            return
        if is_course and not self._has_alike(config, count, build):
            return
        before = config.to_dict()
        for name, value in of_each.items():
            setattr(config, name, value[: self.layers])
        setattr(config, _COUNT, self.layers)
        after = config.to_dict()
        self.of.add(count)
        if len(self.of) > 1:
            raise NeedsWhole("several models have unlike numbers of layers")
        changed = {name: value for name, value in before.items() if after.get(name) != value}
        self._whole.update(json.loads(json.dumps(changed, default=str)))

    def _has_alike(self, config: Any, count: int, build: Callable[[Any], torch.nn.Module]) -> bool:
        """Whether the model's layers are; its weights are counted."""
        try:
            model = build(copy.deepcopy(config))
        except Exception:  # what a model does beside its parameters is not for tensors without memory
            return False
        self.bytes += sum(parameter.nbytes for parameter in model.parameters())
        return _are_alike(model, count)

    @property
    def more(self) -> int:
        """Layers that the models lack."""
        return max(self.of) - (self.layers or 0)

    def needs_whole(self, why: str) -> None:
        """What the layers take is more than what each of them takes. Raises NeedsWhole: only courses are to
        tell."""
        if self.is_course and self.of:
            raise NeedsWhole(why)

    def asked(self, what: str, file: str) -> None:
        """Something asks for layers by their numbers or names. Raises NeedsWhole: not a library that treats
        all of them alike."""
        if self.of and not _treats_alike(file):
            raise NeedsWhole(f"{short(file)} tells layers apart ({what})")

    def trained(self, module: torch.nn.Module) -> None:
        """A model is trained. Raises NeedsWhole: adapters are asked for in some of its layers by their
        numbers, or code that may tell layers apart runs in them."""
        for stack in self._built(module) if self.of else ():
            for part in stack.modules():
                hooks = (part._forward_hooks, part._forward_pre_hooks, everywhere._global_forward_hooks)
                for code in (part.forward, *chain.from_iterable(some.values() for some in hooks)):
                    self.asked("forward", getattr(getattr(code, "__code__", None), "co_filename", _OURS))
        for config in getattr(module, "peft_config", {}).values() if self.of else ():
            names = [
                value
                for name in _ADAPTED
                if (some := getattr(config, name, None))
                for value in ([some] if isinstance(some, str) else some)
            ]
            parts = [part for value in names for part in str(value).split(".")]
            is_pattern = any(isinstance(getattr(config, name, None), str) for name in _ADAPTED)
            by_number = any(getattr(config, name, None) for name in _BY_LAYER)
            if by_number or is_pattern or any(part.isdigit() for part in parts):
                raise NeedsWhole("adapters are in some layers, by number")

    def _built(self, module: torch.nn.Module) -> Iterator[torch.nn.ModuleList]:
        """The stacks of layers that it was built with."""
        lists = (part for part in module.modules() if isinstance(part, torch.nn.ModuleList))
        return (part for part in lists if len(part) == self.layers)

    def see(self, module: Any) -> None:
        """Count what the layers hold that the model was built without."""
        if len(self.of) != 1:
            return
        lasts = [list(stack[-1].parameters()) for stack in self._built(module)]
        held = max(lasts, key=lambda some: sum(map(elements, some)), default=[])
        more = self.more
        trained = sum(elements(parameter) for parameter in held if parameter.requires_grad)
        self._further = more * sum(map(elements, held)), more * trained

    def model(self, facts: dict[str, Any] | None) -> dict[str, Any] | None:
        """Which model trains, as it is with all of its layers."""
        if not self._whole or facts is None or facts.get("config") is None:
            return facts
        return {**facts, "config": {**facts["config"], **self._whole}}

    def engine(self, facts: dict[str, Any] | None) -> dict[str, Any] | None:
        """What its engine runs with, all layers counted."""
        if facts is None:
            return None
        names = ("parameters", "trainable_parameters")
        return {
            **facts,
            **{name: facts[name] + more for name, more in zip(names, self._further, strict=True) if more},
        }

    def to_dict(self) -> dict[str, Any] | str:
        """Return what was built: ``layers`` ``of`` so many, or all."""
        return {"layers": [self.layers], "of": max(self.of)} if self.of else WHOLE
