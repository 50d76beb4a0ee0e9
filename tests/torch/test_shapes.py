"""Remembered results of operators are FakeTensorMode's, on PyTorch's own samples of its operators."""

from __future__ import annotations

import pickle

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from zerokit.trace.recording.shapes import Shapes

_EVERY = 12
"""Of PyTorch's operators; all of them take a minute, and do not differ either."""
_MOST_SAMPLES = 3


def _facts(result, arguments):
    """All that the rest of a script may ask of an operator's tensors, and whose memory they share."""
    inputs = [leaf for leaf in tree_leaves(arguments) if isinstance(leaf, FakeTensor)]
    storages = [one.untyped_storage()._cdata for one in inputs]
    found = []
    for leaf in tree_leaves(result):
        if not isinstance(leaf, FakeTensor):
            found.append(leaf)
            continue
        storage = leaf.untyped_storage()
        found.append(
            (
                leaf.shape, leaf.stride(), leaf.storage_offset(), leaf.dtype, leaf.device, leaf.layout,
                leaf.is_conj(), leaf.is_neg(), leaf.requires_grad, storage.nbytes(),
                [number for number, one in enumerate(inputs) if one is leaf],
                storages.index(storage._cdata) if storage._cdata in storages else None,
                sorted(name for name in leaf.__dict__),
            )
        )  # fmt: skip
    return type(result), found


class _Both(TorchDispatchMode):
    """Asks FakeTensorMode, and what is remembered of its answers."""

    def __init__(self, fake):
        super().__init__()
        self.fake, self.shapes, self.compared, self.remembered = fake, Shapes(fake), 0, 0
        self.differ = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if not any(isinstance(leaf, FakeTensor) for leaf in tree_leaves((args, kwargs))):
            return self.fake.dispatch(func, types, args, kwargs)
        if func._schema.is_mutable and not func.name().endswith("_"):
            return self.fake.dispatch(func, types, args, kwargs)
        first = self.shapes.dispatch(func, types, args, kwargs)
        if func._schema.is_mutable:
            return first
        asked = []
        real, self.fake.dispatch = self.fake.dispatch, lambda *all_: asked.append(func) or real(*all_)
        try:
            again = self.shapes.dispatch(func, types, args, kwargs)
        finally:
            del self.fake.dispatch
        self.compared += 1
        self.remembered += not asked
        expected = self.fake.dispatch(func, types, args, kwargs)
        if _facts(again, (args, kwargs)) != _facts(expected, (args, kwargs)):
            self.differ.add(func.name())
        return again


def test_remembered_results_are_those_of_fake_tensor_mode():
    from torch.testing._internal.common_methods_invocations import op_db  # takes seconds

    fake = FakeTensorMode(allow_non_fake_inputs=True)
    both = _Both(fake)
    converter = fake.fake_tensor_converter
    for operator in op_db[::_EVERY]:
        if torch.float32 not in operator.supported_dtypes("cpu"):
            continue
        try:
            samples = list(operator.sample_inputs("cpu", torch.float32))[:_MOST_SAMPLES]
        except Exception:  # a sample that this build cannot make
            continue
        for sample in samples:
            arguments = tree_map(
                lambda value: (
                    converter.from_real_tensor(fake, value)
                    if isinstance(value, torch.Tensor) and value.layout is torch.strided
                    else value
                ),
                (sample.input, sample.args, sample.kwargs),
            )
            with both:
                try:
                    operator(arguments[0], *arguments[1], **arguments[2])
                except Exception:  # an operator whose result depends on values, or another machine's
                    continue
    assert not both.differ
    assert both.compared > 200
    assert both.remembered > 0.6 * both.compared


def test_answers_are_passed_on_to_another_process(monkeypatch):
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    made = fake.fake_tensor_converter.from_real_tensor(fake, torch.ones(4, 6))
    aten = torch.ops.aten
    asked = [
        (aten.add.Tensor, (made, 1.5), {}),
        (aten.view.default, (made, [6, 4]), {}),
        (aten.split.Tensor, (made, 2), {}),
        (aten._to_copy.default, (made,), {"dtype": torch.bfloat16, "memory_format": torch.preserve_format}),
        (aten.mm.default, (made, aten.t.default(made)), {}),
    ]
    first, second = Shapes(fake), Shapes(fake)
    expected = [
        _facts(first.dispatch(func, (), args, kwargs), (args, kwargs)) for func, args, kwargs in asked
    ]
    second.learn(first.news())
    monkeypatch.setattr(fake, "dispatch", None)
    answers = [
        _facts(second.dispatch(func, (), args, kwargs), (args, kwargs)) for func, args, kwargs in asked
    ]
    assert answers == expected


def test_what_another_process_passes_on_is_not_executed(tmp_path):
    class Opened:
        def __reduce__(self):
            return open, (str(tmp_path / "opened"), "w")

    shapes = Shapes(FakeTensorMode())
    for news in (pickle.dumps(Opened()), pickle.dumps([pickle.dumps(Opened())]), b"no pickle"):
        shapes.learn(news)
    assert not list(tmp_path.iterdir())
