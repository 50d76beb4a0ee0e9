"""Process groups and collectives of ranks that are not there.

Every other rank is taken to hold what this one holds; what one sends to another is in
:mod:`zerokit.rehearsal.process.messages`. Groups use PyTorch's "fake" backend and call
themselves NCCL; collectives on fake tensors are answered in the dispatch mode. An asynchronous collective
keeps its inputs and outputs until ``wait()``, as NCCL's work objects do
(``torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp``, TensorShelf::stash).
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FakeWork
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed._tools.fake_collectives import CollectiveOp
from torch.testing._internal.distributed.fake_pg import FakeStore

from zerokit.rehearsal.process import twins
from zerokit.rehearsal.process.endings import NotRehearsed
from zerokit.rehearsal.process.twins import tensors_in, twin
from zerokit.timing import operators

if TYPE_CHECKING:
    from zerokit.rehearsal.process.machine import Machine, UnderWay

_ASYNCHRONOUS = (
    "all_gather", "all_gather_into_tensor", "_all_gather_base", "reduce_scatter", "reduce_scatter_tensor",
    "_reduce_scatter_base", "all_reduce", "broadcast", "reduce", "all_to_all", "all_to_all_single", "gather",
    "scatter", "isend", "irecv",
)  # fmt: skip

_HOST_BACKENDS = ("gloo", "mpi")
_FEW = 16  # elements of a broadcast that are numbers for the script, such as a count of batches


def answer(machine: Machine, func: Any, args: tuple[Any, ...]) -> Any:
    """What a ``c10d`` operator gives, with the values that are known. Raises NeedsSenders, NotRehearsed: as
    :meth:`zerokit.rehearsal.process.messages.Messages.receive`."""
    for group in args:
        if isinstance(group, torch.ScriptObject) and "ProcessGroup" in str(group._type()):
            _communicates(machine, dist.ProcessGroup.unbox(group))
    name = func._schema.name.split("::")[1]
    handler = _KNOWN_VALUES.get(name)
    if handler is not None:
        handler(machine.under_way, args)
    elif name in _MESSAGES:
        _MESSAGES[name](machine, args)
    work = FakeWork()
    boxed = work.boxed() if hasattr(work, "boxed") else work
    return (args[0], boxed) if func in CollectiveOp.WK_ARG_1 else boxed


def of_group(machine: Machine, args: tuple[Any, ...]) -> None:
    """A functional collective, whose last argument is its group, or the group's name."""
    group = args[-1]
    name = group if isinstance(group, str) else getattr(group, "group_name", None)
    if name is not None:
        machine.communicators.setdefault(name, machine.ledger.allocator.reserved_bytes)


def _communicates(machine: Machine, group: Any) -> None:
    """NCCL makes a group's communicator at its first collective, beside what PyTorch's allocator has."""
    machine.communicators.setdefault(group.group_name, machine.ledger.allocator.reserved_bytes)


def _value(tensor: torch.Tensor) -> torch.Tensor | None:
    return twin(tensor) if isinstance(tensor, FakeTensor) else tensor


def _set(output: torch.Tensor, value: torch.Tensor | None) -> None:
    """The output of a collective holds ``value`` now; None: not known."""
    if not isinstance(output, FakeTensor):
        if value is not None:
            output.copy_(value.reshape(output.shape))
        return
    have = twins.twin_of(output)
    if value is None:
        if have is not None:
            have.validity.lose()
    elif have is not None and have.validity.is_known:
        have.value.copy_(value.reshape(have.value.shape))
    elif twins.may_have(output):
        twins.attach(output, value.clone().reshape(output.shape))


def _gather_into_one(under_way: UnderWay, args: tuple[Any, ...]) -> None:
    output, value = args[0], _value(args[1])
    if value is not None:
        ranks, of_rank = output.numel() // max(1, value.numel()), under_way.of_rank
        if of_rank is None:
            value = value.reshape(-1).repeat(ranks)
        else:
            value = torch.tensor([of_rank(rank) for rank in range(ranks)], dtype=value.dtype)
    _set(output, value)


def _gather_into_list(under_way: UnderWay, args: tuple[Any, ...]) -> None:
    """Gather to one rank; the others have no outputs."""
    for outputs, source in zip(args[0], args[1], strict=False):
        for output in outputs:
            _set(output, _value(source))


def _unknown_list(under_way: UnderWay, args: tuple[Any, ...]) -> None:
    for output in args[0]:
        _set(output, None)


def _reduce_to_one(under_way: UnderWay, args: tuple[Any, ...]) -> None:
    if dist.ProcessGroup.unbox(args[1]).rank() == args[3]:
        _reduce_all(under_way, args)


def _reduce_all(under_way: UnderWay, args: tuple[Any, ...]) -> None:
    """A sum over ranks that all hold the same; maxima, minima and means stay what they are."""
    ranks = dist.ProcessGroup.unbox(args[1]).size()
    if ranks < 2 or under_way.operation != dist.ReduceOp.SUM:
        return
    for tensor in args[0]:
        value = _value(tensor)
        if value is not None and value.dtype != torch.bool:
            value.mul_(ranks)


def _scatter(under_way: UnderWay, args: tuple[Any, ...]) -> None:
    """The sender's own share; what the others get is not known to them."""
    outputs, inputs, group = args[0], args[1], dist.ProcessGroup.unbox(args[2])
    for output, shares in zip(outputs, inputs or [[]] * len(outputs), strict=False):
        _set(output, _value(shares[group.rank()]) if shares else None)


def _broadcast(machine: Machine, args: tuple[Any, ...]) -> None:
    """Broadcast; floats that the sender alone has computed are not known on the other ranks.

    A few numbers are those that the sender is known to send.

    Raises:
        NeedsSenders: the sender was not rehearsed yet.
    """
    under_way, group, root = machine.under_way, dist.ProcessGroup.unbox(args[1]), args[2]
    ranks = tuple(dist.get_process_group_ranks(group))
    for tensor in args[0]:
        few, value = tensor.numel() <= _FEW, _value(tensor)
        if group.rank() == root:
            if few:
                machine.messages.publish(ranks, tensor, value)
            continue
        sent = machine.messages.published(ranks[root], ranks, tensor, value) if few else None
        if under_way.sender_has is not None:
            _set(tensor, torch.tensor(under_way.sender_has, dtype=tensor.dtype))
        elif sent is not None:
            _set(tensor, sent)
        elif under_way.only_sender_has and tensor.dtype.is_floating_point:
            _set(tensor, None)


def _send(machine: Machine, args: tuple[Any, ...]) -> None:
    tensors, group, destination, tag = args
    ranks = dist.get_process_group_ranks(dist.ProcessGroup.unbox(group))
    for tensor in tensors:
        value = _value(tensor) if twins.may_have(tensor) else None
        machine.messages.send(ranks[destination], (tag, *ranks), tensor, value)


def _receive(machine: Machine, args: tuple[Any, ...]) -> None:
    tensors, group, source, tag = args
    ranks = dist.get_process_group_ranks(dist.ProcessGroup.unbox(group))
    for tensor in tensors:
        _set(tensor, machine.messages.receive(ranks[source], (tag, *ranks), tensor))


_KNOWN_VALUES: dict[str, Callable[[UnderWay, tuple[Any, ...]], None]] = {
    "_allgather_base_": _gather_into_one,
    "allgather_": _gather_into_list,
    "gather_": _gather_into_list,
    "scatter_": _scatter,
    "reduce_scatter_": _unknown_list,
    "_reduce_scatter_base_": lambda under_way, args: _set(args[0], None),
    "alltoall_base_": lambda under_way, args: _set(args[0], None),
    "alltoall_": _unknown_list,
    "allreduce_": _reduce_all,
    "reduce_": _reduce_to_one,
}
_MESSAGES: dict[str, Callable[[Machine, tuple[Any, ...]], None]] = {
    "broadcast_": _broadcast,
    "send": _send,
    "recv_": _receive,
}
"""Those in which one rank sends what others may not hold."""


class HeldWork:
    """A collective under way: its tensors stay until somebody waits for it."""

    def __init__(self, work: Any, tensors: list[torch.Tensor], machine: Machine) -> None:
        self._work = work
        self._tensors: list[torch.Tensor] | None = tensors
        self._machine = machine
        self._number = machine.collectives

    def __del__(self) -> None:
        """Nobody waited, and nobody can any more."""
        tensors = self.__dict__.get("_tensors")
        if tensors is not None:
            self._machine.unwaited.put(tensors)

    def wait(self, *args: Any, **kwargs: Any) -> bool:
        """The collective is done: the current stream waits for it."""
        self._tensors = None
        self._machine.saw_runtime(operators.JOIN, "wait", handle=self._number)
        return True

    def get_future(self) -> Any:
        """Done, with the collective's tensors, as DDP's hooks for communication read them."""
        future: Any = torch.futures.Future()
        future.set_result(self._tensors or [])
        return future

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)


def _holding(machine: Machine, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def collective(*args: Any, **kwargs: Any) -> Any:
        machine.unwaited.collective_issued()
        work = function(*args, **kwargs)
        if work is None or isinstance(work, HeldWork):
            return work
        fakes = [one for one in tensors_in([args, kwargs], []) if isinstance(one, FakeTensor)]
        if not fakes:
            return work
        machine.unseen += 1
        aliases = [fake.detach() for fake in fakes]
        machine.unseen -= 1
        return HeldWork(work, aliases, machine)

    return collective


class Barriers:
    """NCCL's barrier is an all-reduce of one float, which stays until the next barrier has one of its own (as
    measured: 512 bytes from the first barrier on, 1,024 from the second on at their most)."""

    _BYTES = 4

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._last: Any = None
        self.on_host: list[Any] = []  # groups whose backend is not NCCL; None: the default group

    def __call__(self, group: Any = None, async_op: bool = False, device_ids: Any = None) -> Any:
        """``torch.distributed.barrier``."""
        if not any(host_group is group for host_group in self.on_host):
            ledger, last = self._machine.ledger, self._last
            self._last = ledger.hold(self._BYTES, "barrier")
            if dist.is_initialized():
                _communicates(self._machine, group or dist.group.WORLD)
            if last is not None:
                ledger.release(last)
        return FakeWork() if async_op else None


def install(machine: Machine) -> None:
    """Replace what makes groups and moves Python objects between ranks."""
    barrier = Barriers(machine)
    new_group = dist.new_group
    init_process_group = dist.init_process_group

    def init(backend: Any = None, *args: Any, **kwargs: Any) -> None:
        if not dist.is_initialized():
            if backend in _HOST_BACKENDS:
                barrier.on_host.append(None)
            init_process_group("fake", store=FakeStore(), rank=machine.rank, world_size=machine.world_size)

    def group(ranks: Any = None, timeout: Any = None, backend: Any = None, *args: Any, **kwargs: Any) -> Any:
        created = new_group(ranks, backend="fake", group_desc=kwargs.get("group_desc"))
        if backend in _HOST_BACKENDS:
            barrier.on_host.append(created)
        return created

    replaced: dict[str, Any] = {
        "init_process_group": init,
        "new_group": group,
        "all_reduce": _telling_operation(machine, dist.all_reduce),
        "reduce": _telling_operation(machine, dist.reduce),
        "all_gather_object": _all_gather_object,
        "broadcast_object_list": lambda *args, **kwargs: None,
        "gather_object": _gather_object,
        "scatter_object_list": _scatter_object_list,
        "barrier": barrier,
        "monitored_barrier": lambda *args, **kwargs: None,
        "is_nccl_available": lambda: True,
        "get_backend": lambda group=None: "nccl",
    }
    for name in _ASYNCHRONOUS:
        function = replaced.get(name) or getattr(dist, name, None)
        if function is not None:
            replaced[name] = _holding(machine, function)
    originals = {name: getattr(dist.distributed_c10d, name, None) for name in replaced}
    for module in [loaded for name, loaded in sys.modules.items() if name.startswith("torch.distributed")]:
        for name, function in replaced.items():  # device_mesh and others have taken some by name
            if module is dist or vars(module).get(name) is originals[name]:
                setattr(module, name, function)


def _telling_operation(machine: Machine, function: Callable[..., Any]) -> Callable[..., Any]:
    """A reduction that says which one it is: the dispatcher gets a boxed one that cannot be read."""
    signature = inspect.signature(function)

    def told(*args: Any, **kwargs: Any) -> Any:
        # no context manager: the recorder would count its calls among the script's
        machine.under_way.operation = signature.bind(*args, **kwargs).arguments.get("op", dist.ReduceOp.SUM)
        try:
            return function(*args, **kwargs)
        finally:
            machine.under_way.operation = None

    return told


def _all_gather_object(object_list: list[Any], obj: Any, group: Any = None) -> None:
    for index in range(len(object_list)):
        object_list[index] = obj


def _gather_object(obj: Any, object_gather_list: list[Any] | None = None, *args: Any, **kwargs: Any) -> None:
    if object_gather_list:
        _all_gather_object(object_gather_list, obj)


def _scatter_object_list(
    scatter_object_output_list: list[Any], scatter_object_input_list: list[Any] | None = None,
    src: int | None = None, group: Any = None, group_src: int | None = None,
) -> None:  # fmt: skip
    """The sender's own share. Raises NotRehearsed: another rank is the sender."""
    if not scatter_object_input_list:
        raise NotRehearsed(
            "torch.distributed.scatter_object_list",
            "which object another rank sends to this one is not known",
        )
    scatter_object_output_list[0] = scatter_object_input_list[dist.get_rank(group)]
