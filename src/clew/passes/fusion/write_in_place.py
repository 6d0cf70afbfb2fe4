"""WriteInPlace: writes states into the memory of their old values."""

from __future__ import annotations

from typing import ClassVar, Final

from clew.ir.expr import Call, Expr, Function, Tuple, Var
from clew.ir.module import Module
from clew.ir.rewrite import Rewriter
from clew.ir.visit import all_nodes
from clew.ops.registry import Op
from clew.passes.base import Pass, PassContext
from clew.passes.hold_states import HELD
from clew.patterns.exactness import EXACT, Exactness
from clew.support.dataclass import dataclass

IN_PLACE: Final = "in_place"
"""The attribute of a kernel that writes only the updates of its root (`Op.scatter`) into the memory
of its parameter with this number.
"""


@dataclass(frozen=True)
class WriteInPlace(Pass):
    """Makes kernels that update elements of a state write only these, into the state's memory.

    The old value must die: it is an input that the caller gives away (`held` of the main function),
    and the kernel is its only reader. All other readers read the new value, and so run after it.

    Before:
        %2 = fn[overwrite](%a, %b) { overwrite(%a, %b, begin=past, axis=2) }(%buffer, %1)
    After:
        %2 = fn[overwrite] in_place=0 (%a, %b) { ... }(%buffer, %1)

    Preconditions: runs after FuseOps. Non-goals: values within a call, whose memory the program
    plans.
    """

    opt_level: ClassVar[int] = 1
    exactness: ClassVar[Exactness] = EXACT

    def run(self, module: Module, ctx: PassContext) -> Module:
        held = module.main.attrs.get(HELD, ())
        return _Writer(ctx, held).rewrite_module(module) if held else module


class _Writer(Rewriter):
    def __init__(self, ctx: PassContext, held: tuple[tuple[str, int], ...]) -> None:
        super().__init__()
        self._ctx = ctx
        self._held = held
        self._found: dict[int, int] = {}

    def rewrite_module(self, module: Module) -> Module:
        main = module.main
        results = main.body.fields if isinstance(main.body, Tuple) else (main.body,)
        params = {param.name: param for param in main.params}
        readers: dict[int, list[Expr]] = {}
        for node in all_nodes(main):
            for child in node.children:
                readers.setdefault(child.id, []).append(node)
        for name, output in self._held:
            param, value = params[name], results[output]
            number, reason = _place(value, param, readers.get(param.id, []))
            if reason:
                self._ctx.remark(value, f"{name} is not written in place: {reason}")
            else:
                self._found[value.id] = number
        return super().rewrite_module(module)

    def rewrite_call(self, old: Call, new: Call) -> Expr:
        number = self._found.get(old.id)
        if number is None or not isinstance(new.op, Function):
            return new
        function = new.op
        attrs = {**function.attrs, IN_PLACE: number}
        return Call(Function(function.params, function.body, attrs), new.args, new.attrs)


def _place(value: Expr, param: Var, uses: list[Expr]) -> tuple[int, str]:
    """Returns the number of the kernel's parameter that is the old value, and why the kernel cannot
    write into its memory.
    """
    if not isinstance(value, Call) or not isinstance(value.op, Function):
        return -1, "no kernel computes it"
    if uses != [value] or list(value.args).count(param) != 1:
        return -1, "another operator reads the old value"
    number, root = list(value.args).index(param), value.op.body
    inner = value.op.params[number]
    if not isinstance(root, Call) or not _writes(root) or root.args[0] is not inner:
        return -1, "the kernel does more than replace some of its elements"
    inside = [node for node in all_nodes(value.op) if any(c is inner for c in node.children)]
    if any(node is not root for node in inside) or root.args.count(inner) != 1:
        return -1, "the new elements depend on the old value"
    return number, ""


def _writes(root: Call) -> bool:
    """Whether an operator only replaces elements of its first operand."""
    if not isinstance(root.op, Op) or root.op.scatter_rule is None:
        return False
    return 0 not in [size for arg in root.args for size in arg.tensor.shape]
