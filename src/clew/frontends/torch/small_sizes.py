"""Whether a program changes where a branch on a size treats 0 or 1 separately.

Libraries branch on sizes of 1 (`is_causal = length > 1 and mask is None`). torch records the
outcome for the example as a guard, even if both outcomes lead to the same program. To find out, the
module is exported again with an example whose size is fixed at that number.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import sympy
import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.utils import _pytree as pytree

from clew.frontends.torch.places import is_check
from clew.ir.size_rules import SizeRule
from clew.support.errors import ClewError

_END: Final = (1 << 63) - 1  # of a slice without an end
# Sizes at which a rule is tried: a rule that excludes larger ones, too, does so at some of these.
_TRIED: Final = (*range(2048), *((1 << n) + more for n in range(11, 31) for more in (-1, 0, 1)))
Export = Callable[[Sequence[Any], Mapping[str, Any], Any], ExportedProgram]


class SmallSizes:
    """Compares a program, which a module became with `args` and `kwargs`, with those that the
    module becomes with parts of these arguments.
    """

    def __init__(
        self,
        program: ExportedProgram,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        export: Export,
    ) -> None:
        self._program = program
        self._leaves, self._spec = pytree.tree_flatten((tuple(args), dict(kwargs)))
        self._export = export

    def needed(self, rules: Iterable[SizeRule], symbols: Mapping[str, Any]) -> list[SizeRule]:
        """Returns the rules without those that exclude only sizes of 0 and 1 for which the program
        is the same. `symbols` has torch's symbols of sizes by name.
        """
        found = list(rules)
        excluded = [_excluded(rule) for rule in found]
        sizes = dict(one for one in excluded if one is not None and one[0] in symbols)
        if not sizes:
            return found
        given = [{symbols[name]: size} for name, size in sizes.items()]
        if len(given) > 1:  # all at once, too: a branch may depend on several sizes
            given.append({symbols[name]: size for name, size in sizes.items()})
        if not all(map(self._same, given)):
            return found
        return [
            rule
            for rule, one in zip(found, excluded, strict=True)
            if one is None or one[0] not in sizes
        ]

    def _same(self, sizes: Mapping[Any, int]) -> bool:
        """Whether the program is the same for an example of some sizes."""
        shapes = torch.export.ShapesCollection()
        leaves = self._example(sizes, shapes)
        if leaves is None:
            return False
        args, kwargs = pytree.tree_unflatten(leaves, self._spec)
        with suppress(ClewError, ValueError):  # torch cannot export it, or inputs differ
            other = self._export(args, kwargs, shapes)
            return _steps(other, self._program, sizes) == _steps(
                self._program, self._program, sizes
            )
        return False

    def _example(
        self, sizes: Mapping[Any, int], shapes: torch.export.ShapesCollection
    ) -> list[Any] | None:
        """Returns the leaves of the arguments with other sizes, of which some are given, and adds
        the axes that stay free to `shapes`; None if the leaves cannot be parts of the arguments.
        """
        nodes = {n.name: n for n in self._program.graph.find_nodes(op="placeholder")}
        fakes = [
            nodes[spec.arg.name].meta.get("val")
            for spec in self._program.graph_signature.input_specs
            if spec.kind is InputKind.USER_INPUT and spec.arg.name in nodes
        ]
        if len(fakes) != len(self._leaves):
            return None
        found = []
        for leaf, fake in zip(self._leaves, fakes, strict=True):
            if isinstance(leaf, torch.Tensor) and isinstance(fake, torch.Tensor):
                part = leaf
                for axis, size in enumerate(fake.shape):
                    wanted = _at(size, sizes)
                    if wanted is None or not 0 <= wanted <= leaf.shape[axis]:
                        return None
                    part = part.narrow(axis, 0, wanted)
                leaf = part.clone()
                shapes[leaf] = {
                    axis: torch.export.Dim.AUTO
                    for axis, size in enumerate(fake.shape)
                    if isinstance(size, torch.SymInt)
                    and not sizes.keys() & size.node.expr.free_symbols
                }
            elif isinstance(fake, torch.SymInt):
                return None
            found.append(leaf)
        return found


def _excluded(rule: SizeRule) -> tuple[str, int] | None:
    """Returns the name of a size and the largest value that a rule excludes, if that is 0 or 1."""
    if len(rule.names) != 1 or rule.layer:
        return None
    (name,) = rule.names
    fails = []
    for size in _TRIED:
        try:
            rule.check({name: size})
        except ClewError:
            fails.append(size)
            if size > 1:
                return None
    return (name, fails[-1]) if fails else None


def _at(size: Any, sizes: Mapping[Any, int]) -> int | None:
    """Returns a size of torch where some symbols have other values than in the example."""
    if not isinstance(size, torch.SymInt):
        return int(size)
    env, expr = size.node.shape_env, size.node.expr
    known = {symbol: env.backed_var_to_val.get(symbol) for symbol in expr.free_symbols}
    if None in known.values():
        return None
    return int(expr.xreplace({**known, **{s: sympy.Integer(size) for s, size in sizes.items()}}))


def _steps(program: ExportedProgram, like: ExportedProgram, sizes: Mapping[Any, int]) -> list[Any]:
    """Returns the effect of a program's calls at some sizes, in terms of the symbols that `like`
    has for the other sizes of the same inputs.
    """
    symbols: dict[Any, Any] = {}
    for own, other in zip(_sizes(program), _sizes(like), strict=True):
        if isinstance(own, torch.SymInt) and own.node.expr.is_Symbol:
            symbols.setdefault(own.node.expr, getattr(getattr(other, "node", None), "expr", other))
    symbols |= {symbol: sympy.Integer(size) for symbol, size in sizes.items()}
    inner = [m for m in program.graph_module.modules() if isinstance(m, fx.GraphModule)]
    return [call for module in inner for call in _calls(module.graph, symbols)]


def _sizes(program: ExportedProgram) -> list[Any]:
    fakes = [node.meta.get("val") for node in program.graph.find_nodes(op="placeholder")]
    return [size for fake in fakes for size in getattr(fake, "shape", [fake])]


def _calls(graph: fx.Graph, symbols: Mapping[Any, Any]) -> Iterator[Any]:
    numbers, count = dict[fx.Node, int](), itertools.count()

    def plain(value: Any) -> Any:
        if not isinstance(value, fx.Node):
            return repr(value)
        size = value.meta.get("val")
        if isinstance(size, torch.SymInt):
            return str(size.node.expr.xreplace(symbols))
        return numbers[value]

    for node in graph.nodes:
        if _is_no_op(node):
            numbers[node] = numbers[node.args[0]]
        elif not isinstance(node.meta.get("val"), torch.SymInt) and not is_check(node):
            args, form = pytree.tree_flatten((node.args, node.kwargs))
            yield node.op, str(node.target), list(map(plain, args)), str(form)
            numbers[node] = next(count)


def _is_no_op(node: fx.Node) -> bool:
    """Whether a call changes no elements: torch leaves it out where sizes are known."""
    if node.target is torch.ops.aten.slice.Tensor:
        bounds = (*node.args[1:], *(0, 0, _END, 1)[len(node.args) - 1 :])
        return bounds[1:] == (0, _END, 1)
    return node.target is torch.ops.aten.contiguous.default
