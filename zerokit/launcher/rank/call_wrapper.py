"""A wrapper around a collective that leaves a record of each call, in as little time as Python allows.

Its body is the text below, compiled once for each collective, as ``dataclasses`` and ``namedtuple`` compile
their methods. The text has four gaps: the parameters of what is wrapped, the same passed on, and the names of
those that hold the group and the tensor. ``all_reduce(tensor, op=SUM, group=None, async_op=False)`` becomes::

    def all_reduce(tensor, op=default_of_op, group=default_of_group, async_op=default_of_async_op):
        ...
        its = by_id.get(id(group)) or find(group)
        ...
        return original(tensor, op, group, async_op)

A closure over ``*args, **kwargs`` needs no text, and costs 1.6 to 2.3 times as much: it packs both, looks for
the group and the tensor among them, and unpacks them again (3.0 µs a call instead of 1.3 with two arguments,
2.5 instead of 1.6 with four; Python 3.11.7). A ZeRO-3 step makes hundreds of calls, and
``python -m benchmarks.recording_cost`` holds them below 0.5 % of it.

The text is fixed; what fills the gaps are Python's own names of the parameters and the operation's name from
the table in :mod:`zerokit.launcher.rank.calls`. Nothing of the script, a file or the network reaches it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from inspect import Parameter
from typing import Any

_SOURCE = """
def {name}({parameters}):
    if inside and thread() in inside:  # objects travel as tensors: one call, not three
        return original({arguments})
    its = by_id.get(id({group})) or find({group})
    its.count = count = its.count + 1
    fetched = visits[-1]
    entry = [count, {name!r}, its.name, getattr({tensor}, "shape", None), getattr({tensor}, "dtype", None),
             fetched, probe.position, probe.phase, True]
    remember(entry)
    if fetched.__class__ is int:  # in a fetch of weights, which is measured as a whole
        try:
            return original({arguments})
        finally:
            entry[8] = False
    began = clock()
    try:
        return original({arguments})
    finally:
        entry[8] = False
        waited[0] += clock() - began
"""
_STARS = {"VAR_POSITIONAL": "*", "VAR_KEYWORD": "**"}
ENTRY = ("count", "operation", "group", "shape", "dtype", "fetched", "position", "phase", "under_way")
"""What a call leaves."""
_TENSORS = ("input_tensor", "input", "tensor")  # the one that must be alike on all ranks


def recording(original: Callable[..., Any], operation: str, recorder: dict[str, Any]) -> Callable[..., Any]:
    """``original``, each call of it recorded as ``operation``.

    Args:
        recorder: what the source above uses: ``inside`` (threads within a call that makes others),
            ``thread``, ``by_id`` and ``find`` (a group, by the object's id and by the object), ``visits``
            (its last is a number during a fetch of weights), ``probe``, ``remember`` (takes the entry),
            ``clock`` and ``waited`` (a list of one number, to which seconds are added).

    Raises:
        ValueError: its parameters cannot be told.
    """
    parameters = inspect.signature(original).parameters
    values = dict(recorder, original=original)
    declared: list[str] = []
    passed: list[str] = []
    for name, parameter in parameters.items():
        star = _STARS.get(parameter.kind.name, "")
        default = ""
        if parameter.default is not Parameter.empty:
            default = f"=default_of_{name}"
            values[f"default_of_{name}"] = parameter.default
        if parameter.kind is Parameter.KEYWORD_ONLY and not any(
            parameter_name.startswith("*") for parameter_name in declared
        ):
            declared.append("*")
        declared.append(f"{star}{name}{default}")
        passed.append(f"{name}={name}" if parameter.kind is Parameter.KEYWORD_ONLY else f"{star}{name}")
    source = _SOURCE.format(
        name=operation,
        parameters=", ".join(declared),
        arguments=", ".join(passed),
        group="group" if "group" in parameters else "None",
        tensor=next((name for name in _TENSORS if name in parameters), "None"),
    )
    exec(compile(source, __file__, "exec"), values)  # noqa: S102 - the text is above, the names are PyTorch's
    wrapper: Callable[..., Any] = functools.wraps(original)(values[operation])
    return wrapper
