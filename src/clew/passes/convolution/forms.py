"""FormRewriter: the base of passes that compute chains of operators on values in another form."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence

from clew.ir.dims import Dim
from clew.ir.expr import Call, Expr, Function
from clew.ir.rewrite import Rewriter, rebuild
from clew.ir.types import TensorType
from clew.ops.registry import Op, argument_references
from clew.passes.base import PassContext
from clew.support.errors import GraphTypeError
from clew.te.analysis import Kind, is_aligned

POINTWISE = (Kind.ELEMENTWISE, Kind.BROADCAST)
CHANNELS = 1


class FormRewriter(Rewriter):
    """Rewrites operators to work on the other form of their values, for example on images instead
    of signals. Values are converted only where a chain of such operators begins or ends.

    A pass defines the form (`has_form`, `form_shape`, `to_form` and `from_form`), the operators
    with which a chain begins (`begins`), and the calls on the other form (`formed`). The memo maps
    a node to its value in either form.
    """

    rebuilds = False

    def __init__(self, ctx: PassContext) -> None:
        super().__init__()
        self.ctx = ctx
        self._bodies: set[int] = set()
        self._formed: set[int] = set()  # values in the other form
        self._converted: dict[int, Expr] = {}

    # --- what a pass defines ---

    @abstractmethod
    def has_form(self, value: Expr) -> bool:
        """Whether the other form is defined for a value."""

    @abstractmethod
    def form_shape(self, value: Expr) -> tuple[Dim, ...]:
        """Returns the shape of a value in the other form."""

    @abstractmethod
    def to_form(self, value: Expr, old: Expr) -> Expr:
        """Returns `value`, which computes `old`, converted to the other form."""

    @abstractmethod
    def from_form(self, value: Expr, old: Expr) -> Expr:
        """Returns `value`, which computes `old` in the other form, converted back."""

    @abstractmethod
    def begins(self, old: Call) -> bool:
        """Whether a chain may begin with this call. Other calls only continue one."""

    @abstractmethod
    def formed(self, old: Call) -> Expr | None:
        """Returns the call on the other form, or None if it needs values in their original form."""

    def over_forms(self, old: Call, operands: Sequence[Expr]) -> Expr | None:
        """Returns a pointwise call on operands in the other form. Returns None if it may compute
        something else there, as a user's operator does that refers to an axis by number.
        """
        if self.ctx.kind(old) not in POINTWISE:
            return None
        assert isinstance(old.op, Op)
        try:
            new = Call(old.op, operands, old.attrs)
            stages = old.op.computed([a.tensor for a in operands], old.attrs)
        except (TypeError, ValueError, IndexError, AssertionError):  # it has a fixed rank
            return None
        return new if is_aligned(stages) else None

    def tells(self, value: Expr) -> bool:
        """Whether the type of a value in the other form tells that it is in that form."""
        return True

    # --- the rewriting ---

    def is_same(self, old: Expr, new: Expr) -> bool:
        return not self.is_formed(new) or self.tells(old)

    def enter(self, function: Function) -> None:
        self._bodies.add(function.body.id)

    def rewrite_call(self, old: Call, new: Call) -> Expr:
        try:
            found = self._rewritten(old)
        except GraphTypeError:  # attributes may name axes
            found = None
        if found is None or found.tensor.shape != self.form_shape(old):
            return self._over_plain(old)
        self._formed.add(found.id)
        return self.plain(found, old, old) if old.id in self._bodies else found

    def _rewritten(self, old: Call) -> Expr | None:
        if not isinstance(old.op, Op) or not self.has_form(old) or argument_references(old.attrs):
            return None
        continues = any(self.is_formed(self.memo[a.id]) for a in old.args)
        return self.formed(old) if continues or self.begins(old) else None

    def is_formed(self, value: Expr) -> bool:
        """Whether a new value is in the other form."""
        return value.id in self._formed

    def form(self, old: Expr, user: Expr) -> Expr:
        """Returns a value in the other form for `user`."""
        value = self.memo[old.id]
        return value if self.is_formed(value) else self._convert(self.to_form, value, old, user)

    def plain(self, value: Expr, old: Expr, user: Expr) -> Expr:
        """Returns `value`, the value of `old`, in its own form for `user`."""
        return self._convert(self.from_form, value, old, user) if self.is_formed(value) else value

    def _convert(
        self, convert: Callable[[Expr, Expr], Expr], value: Expr, old: Expr, user: Expr
    ) -> Expr:
        """Returns a converted value; it is converted once for all users."""
        found = self._converted.get(value.id)
        if found is None:
            with self.covers(old, user):
                found = convert(value, old)
            self._converted[value.id] = found
        return found

    def _over_plain(self, old: Expr) -> Expr:
        return rebuild(old, [self.plain(self.memo[c.id], c, old) for c in old.children])

    def rewrite_other(self, old: Expr, new: Expr) -> Expr:
        return self._over_plain(old)

    def rewrite_control(self, old: Expr, new: Expr) -> Expr:
        return self._over_plain(old)

    def rewrite_tuple_get_item(self, old, new):  # type: ignore[no-untyped-def]
        return super().rewrite_tuple_get_item(old, self._over_plain(old))  # type: ignore[arg-type]


def is_convolution(value: Expr, axes: str) -> bool:
    """Whether a value is a convolution over `axes` ("W", "HW" or "DHW")."""
    return (
        isinstance(value, Call) and isinstance(value.op, Op) and value.op.traits.convolves == axes
    )


def has_rank(value: Expr, rank: int) -> bool:
    """Whether a value is a tensor of the given rank."""
    return isinstance(value.type, TensorType) and value.type.rank == rank
