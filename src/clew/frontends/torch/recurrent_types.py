"""Types of recurrent operators' results, so that `torch.export` can leave the time free.

torch finds these types by running the operator's decomposition, a Python loop over time, which
fixes the number of steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch._decomp import decomposition_table
from torch._subclasses.fake_tensor import FakeTensor

aten: Final = torch.ops.aten
_OPS: Final = (aten.lstm.input, aten.gru.input, aten.rnn_tanh.input, aten.rnn_relu.input)


@contextmanager
def free_time() -> Iterator[None]:
    """A context in which recurrent operators on fake tensors only give types."""
    saved = [(op, dict(op.py_kernels)) for op in _OPS]
    rules = {op: decomposition_table[op] for op in _OPS if op in decomposition_table}
    try:
        for op, kernels in saved:
            for key, kernel in kernels.items():
                op.py_kernels[key] = _typed(kernel)
            op._dispatch_cache.clear()
        decomposition_table.update({op: _typed(rule) for op, rule in rules.items()})
        yield
    finally:
        for op, kernels in saved:
            op.py_kernels.clear()
            op.py_kernels.update(kernels)
            op._dispatch_cache.clear()
        decomposition_table.update(rules)


def _typed(kernel: Callable[..., Any]) -> Callable[..., Any]:
    def run(x: Any, hx: Any, params: Any, *rest: Any, **named: Any) -> Any:
        if isinstance(x, FakeTensor):
            return _results(x, hx, *rest, **named)
        return kernel(x, hx, params, *rest, **named)

    return run


def _results(
    x: torch.Tensor,
    hx: Any,
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[torch.Tensor, ...]:
    states = hx if isinstance(hx, (list, tuple)) else [hx]
    width = states[0].shape[-1] * (2 if bidirectional else 1)
    whole = x.new_empty((*x.shape[:-1], width))
    return (whole, *(state.new_empty(state.shape) for state in states))
