"""Which parameters FSDP2 gathers together, and the bytes of each such group on one rank."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import lru_cache

from zerokit.domain.fsdp2_settings import Fsdp2Settings
from zerokit.memory.rank_model import DTYPE_BYTES, RankModel, block, embeddings_of, layers_of
from zerokit.values import frozen_dataclass

_ADAPTED = "base_model.model."


@frozen_dataclass
class Group:
    """Parameters that travel in one collective (``FSDPParamGroup``).

    Attributes:
        modules: that were handed to one call of ``fully_shard``, in its order.
        first, last: those that run first and last.
        parameters: their positions in the model, in the order of the modules.
        reshards: what forward gathered is freed after it.
    """

    modules: tuple[str, ...]
    first: str
    last: str
    parameters: tuple[int, ...]
    reshards: bool


@frozen_dataclass
class Share:
    """One parameter on one rank: dimension 0 is divided, each rank's chunk is padded to the first one's.

    Attributes:
        numel: elements of the chunk, padding included; ``whole``: of all ranks' chunks.
        kept: bytes of an element between steps; ``used``: as forward uses it.
        size: elements of the parameter itself.
        padded: ranks whose chunks are smaller than the first one's, or empty.
        made: elements of its gradient as autograd makes it: DTensor's of an embedding whose rows ranks
            divide has all rows (torch/distributed/tensor/_ops/_embedding_ops.py:62, 2.13).
        is_alias: of a weight that was tied after it was divided: it travels by itself, and its chunk is the
            other's.
    """

    name: str
    numel: int
    whole: int
    size: int
    kept: int
    used: int
    trainable: bool
    padded: int
    made: int
    is_alias: bool = False

    @property
    def kept_bytes(self) -> int:
        """Bytes of the chunk between steps."""
        return block(self.numel * self.kept)

    @property
    def gathered_bytes(self) -> int:
        """Bytes of the gathered parameter."""
        return block(self.whole * self.used)


@lru_cache(maxsize=256)
def shares_of(model: RankModel, settings: Fsdp2Settings, ranks: int) -> tuple[Share, ...]:
    """Every parameter on rank 0 of ``ranks``, which has no padding where others have (``torch.chunk``,
    fsdp/_fully_shard/_fsdp_param.py:278)."""
    used = settings.parameter_bytes
    # as they were loaded: Accelerate upcasts what is trained (accelerate/utils/fsdp_utils.py, 1.15), PEFT its
    # adapters (peft/tuners/tuners_utils.py, autocast_adapter_dtype, 0.18)
    frozen = 4 if model.kbit_prepared else settings.frozen_bytes or used
    found = []
    embedding = f"{embeddings_of(model)[0]}.weight" if settings.tp_size > 1 else ""
    whole = next((one.numel for one in model.profile.parameters if one.name == embedding), 0)
    for parameter in model.parameters:
        rows = parameter.shape[0] if parameter.shape else 1
        each = parameter.numel // max(1, rows)
        if parameter.stored_bytes:  # bytes in a column of forward's dtype, so that no gather converts them
            rows, each = -(-parameter.numel // used), 1
        chunk = -(-rows // ranks)
        share = chunk * each
        kept = settings.master_bytes if parameter.trainable else used if parameter.stored_bytes else frozen
        found.append(
            Share(
                name=parameter.name, numel=share, whole=share * ranks, size=rows * each, kept=kept,
                used=used, trainable=parameter.trainable, padded=ranks - rows // max(1, chunk),
                made=whole if parameter.name == embedding else rows * each,
                is_alias=parameter.name in model.profile.ties,
            )
        )  # fmt: skip
    return tuple(found)


def own_shares(model: RankModel, settings: Fsdp2Settings, ranks: int) -> tuple[Share, ...]:
    """List what is in memory between steps, each chunk once."""
    return tuple(share for share in shares_of(model, settings, ranks) if not share.is_alias)


_BLOCK, _NESTED_BLOCK = 64, 256
_CODES = (4 * 16, 4 * 256, 4)


def constant_bytes(model: RankModel) -> int:
    """Bytes of what is needed to unpack 4-bit weights: no parameters of a module, so that each rank holds
    them whole, on its GPU. A scale for each block in fp32, or in 8 bits with one for each of their own
    blocks, and tables of codes (bitsandbytes 0.50.2, functional.py, ``QuantState``)."""
    total = 0
    for parameter in model.parameters:
        blocks = -(-2 * parameter.numel // _BLOCK)
        plain = [4 * blocks, _CODES[0]]
        nested = [blocks, 4 * -(-blocks // _NESTED_BLOCK), *_CODES]
        is_nested = parameter.stored_bytes - parameter.numel < sum(plain)
        if parameter.stored_bytes:
            total += sum(map(block, nested if is_nested else plain))
    return total


@lru_cache(maxsize=256)
def groups_of(model: RankModel, settings: Fsdp2Settings) -> tuple[Group, ...]:
    """The groups as ``fully_shard`` makes them: of every module what no group inside it holds. The root's is
    the last, and may hold nothing."""
    calls: list[tuple[tuple[str, ...], bool]] = []
    for name in layers_of(model.parameters):
        calls.append(((name,), settings.reshard_after_forward))
    embedding, head = embeddings_of(model)
    if settings.wrapping == "accelerate":
        calls += _around_layers(model, settings, embedding, head)
    inside = _inside(model)
    taken: set[int] = set()
    groups = []
    for modules, reshards in calls:
        own = [index for module in modules for index in inside.get(module, ())]
        own = [index for index in dict.fromkeys(own) if index not in taken]
        taken |= set(own)
        first = embedding if embedding in modules else modules[0]
        last = modules[-1] if modules[-1] != embedding else modules[0]
        groups.append(
            Group(modules=modules, first=first or "", last=last, parameters=tuple(own), reshards=reshards)
        )
    rest = tuple(index for index in range(len(model.parameters)) if index not in taken)
    return (*groups, Group(modules=("",), first="", last="", parameters=rest, reshards=False))


def _inside(model: RankModel) -> dict[str, list[int]]:
    """The parameters of every module, those of the modules in it among them."""
    aliases = {name: alias for alias, name in model.profile.ties.items()}
    found = defaultdict[str, list[int]](list)
    for index, parameter in enumerate(model.parameters):
        modules: dict[str, None] = {}
        for name in (parameter.name, aliases.get(parameter.name, "")):
            while name := name.rpartition(".")[0]:
                modules[name] = None
        for module in modules:
            found[module].append(index)
    return found


def _around_layers(
    model: RankModel, settings: Fsdp2Settings, embedding: str | None, head: str | None
) -> Iterator[tuple[tuple[str, ...], bool]]:
    """The input embedding by itself, and final norm and head together, gathered to the end of backward
    (``fsdp2_prepare_model``, accelerate/utils/fsdp_utils.py:741, 1.15): tied ones all three. Transformers
    does the same, but leaves a tied head to the root."""
    tied = f"{embedding}.weight" == model.profile.ties.get(f"{head}.weight")
    if embedding is not None and not tied:
        yield (embedding,), settings.reshard_after_forward
    is_roots = tied and settings.tp_size > 1
    tail = (_final_norm(model), embedding if tied else None, None if is_roots else head)
    modules = tuple(module for module in tail if module is not None)
    if modules:
        yield modules, False


def _final_norm(model: RankModel) -> str | None:
    """The last norm among the direct children of the base model; under adapters none is found, since the
    model around it is taken for the base."""
    if any(p.name.startswith(_ADAPTED) for p in model.parameters):
        return None
    found = None
    for parameter in model.parameters:
        module, _, _ = parameter.name.rpartition(".")
        if module.count(".") == 1 and len(parameter.shape) == 1:
            found = module
    return found


@frozen_dataclass
class GroupBytes:
    """Bytes of one group on one rank, as its collectives allocate them.

    Attributes:
        shares: of its parameters.
        copied: of the shares in the dtype that travels, made before the gather; 0: they travel as they are.
        flat: of the buffer that the gather writes to.
        gathered: of the whole parameters, copied out of it.
        reduced: of the buffer that the reduction reads, and ``scattered`` of what it writes.
        kept: of the rank's share of the gradients, in the dtype of the shards.
    """

    shares: tuple[Share, ...]
    copied: int
    flat: int
    gathered: int
    reduced: int
    scattered: int
    kept: int


def reduce_bytes(settings: Fsdp2Settings) -> int:
    """Bytes of an element of a gradient that travels."""
    return DTYPE_BYTES[settings.reduce_dtype] if settings.reduce_dtype else settings.parameter_bytes


def bytes_of(group: Group, shares: tuple[Share, ...], settings: Fsdp2Settings, ranks: int) -> GroupBytes:
    """Bytes of one group (``foreach_all_gather``, ``foreach_reduce`` of _fsdp_collectives.py)."""
    own = tuple(shares[index] for index in group.parameters)
    trained = [share for share in own if share.trainable]
    travels = reduce_bytes(settings)
    reduced = sum(share.whole for share in trained)
    scattered = reduced // ranks
    return GroupBytes(
        shares=own,
        copied=block(sum(share.numel * share.used for share in own if share.kept != share.used)),
        flat=block(sum(share.whole * share.used for share in own)),
        gathered=sum(share.gathered_bytes for share in own),
        reduced=block(reduced * travels),
        scattered=block(scattered * travels),
        kept=block(scattered * (trained[0].kept if trained else travels)),
    )
