"""Parts of a model by the names of its modules, and what the allocator gives for a tensor."""

from __future__ import annotations

import re
from collections.abc import Iterable

from zerokit.domain.profile import Parameter
from zerokit.memory.rank_model import RankModel

_LAYER = re.compile(r"^(?:.*?\.)?(?:layers|layer|h|blocks|block)\.\d+(?=\.|$)")


def block(size_bytes: int) -> int:
    """What the caching allocator gives for a tensor (``kMinBlockSize``, c10/core/AllocatorConfig.h)."""
    return -(-size_bytes // 512) * 512


def layers_of(parameters: Iterable[Parameter]) -> tuple[str, ...]:
    """The decoder layers, by the names of their modules, in order."""
    matches = (_LAYER.match(parameter.name) for parameter in parameters)
    return tuple(dict.fromkeys(match.group() for match in matches if match is not None))


def stacks_of(parameters: Iterable[Parameter]) -> frozenset[str]:
    """The lists that hold the layers."""
    return frozenset(layer.rpartition(".")[0] for layer in layers_of(parameters))


def embeddings_of(model: RankModel) -> tuple[str | None, str | None]:
    """The input embedding and the head, by the names of their modules."""
    layers = tuple(f"{layer}." for layer in layers_of(model.parameters))
    names = [p.name for p in model.parameters if len(p.shape) == 2 and not p.name.startswith(layers)]
    names = [name for name in names if ".lora_" not in name]
    if not names:
        return None, None
    embedding = names[0].rpartition(".")[0]
    tied = [alias for alias, name in model.profile.ties.items() if name == names[0]]
    head = tied[-1] if tied else names[-1]
    return embedding, head.rpartition(".")[0]
