"""Models with few of their layers, where the others are alike and nothing new would be seen in them."""

from __future__ import annotations

import json
from typing import Any

import torch

from zerokit.instrument.live_models import elements

_COUNT = "num_hidden_layers"
_FEWEST = 9
"""Of fewer layers all are built: they take no longer than a few of them at two depths."""


class Depth:
    """How many layers models are built with.

    Attributes:
        layers: so many of a decoder's; None: all.
        of: how many those have that were built with fewer.
    """

    def __init__(self) -> None:
        self.layers: int | None = None
        self.of: set[int] = set()
        self._whole: dict[str, Any] = {}
        self._further: tuple[int, int] = (0, 0)

    def cut(self, config: Any) -> None:
        """Take layers off a model's configuration before it is built from it.

        Models of several parts keep theirs: an encoder's layers are not the decoder's. So do models of which
        the configuration says something else of one layer than of another.
        """
        count = getattr(config, _COUNT, None)
        is_whole = getattr(config, "sub_configs", None) or getattr(config, "is_encoder_decoder", False)
        if self.layers is None or not isinstance(count, int) or count < _FEWEST or is_whole:
            return
        of_each = {
            name: value
            for name, value in vars(config).items()
            if isinstance(value, list) and len(value) == count
        }
        if any(one != value[0] for value in of_each.values() for one in value):
            return
        before = config.to_dict()
        for name, value in of_each.items():
            setattr(config, name, value[: self.layers])
        setattr(config, _COUNT, self.layers)
        after = config.to_dict()
        self.of.add(count)
        changed = {name: value for name, value in before.items() if after.get(name) != value}
        self._whole.update(json.loads(json.dumps(changed, default=str)))

    def see(self, module: Any) -> None:
        """Count what the layers hold that the model was built without."""
        if len(self.of) != 1:
            return
        lists = (part for part in module.modules() if isinstance(part, torch.nn.ModuleList))
        lasts = [list(part[-1].parameters()) for part in lists if len(part) == self.layers]
        held = max(lasts, key=lambda some: sum(map(elements, some)), default=[])
        more = max(self.of) - (self.layers or 0)
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

    def to_dict(self) -> dict[str, Any] | None:
        """``layers`` were built ``of`` so many, in each of the models that have fewer; None: none has."""
        return {"layers": self.layers, "of": sorted(self.of)} if self.of else None
