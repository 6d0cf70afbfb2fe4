"""ConvertPrecision: products of narrow floats, accumulated in f32."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import ClassVar, Final

from clew.cost.policy.precision import (
    CHANNELS_TO_NARROW,
    DEPTH_TO_NARROW,
    FILTERS_TO_NARROW,
    QUERIES_TO_NARROW,
)
from clew.ir.expr import Call, Constant, Expr, Function, Var
from clew.ir.module import Module
from clew.ir.rewrite import Rewriter, building_for, layer_names, rebuild, replaces
from clew.ir.types import TensorType
from clew.ir.visit import post_order
from clew.ops.registry import Op, argument_references, get_op
from clew.passes.attention_tiles import attention_fills_tiles
from clew.passes.base import Pass, PassContext
from clew.passes.precision.stored_rounded import (
    factors,
    has_dtype,
    in_dtype,
    moves,
    stored_in_both,
    stored_rounded,
)
from clew.patterns.exactness import Exactness
from clew.support.dataclass import dataclass
from clew.support.errors import GraphTypeError

_WIDE: Final = "f32"
_ATTENTION: Final = "nn.attention"


@dataclass(frozen=True)
class ConvertPrecision(Pass):
    """Multiplies in `bf16` (or `f16`): operands of convolutions and matrix products are rounded,
    products are accumulated and returned in f32, and all other operators stay in f32.

    An operand of a convolution is stored rounded, once. Its other users read the rounded form too,
    so that activations between layers take half the bytes. An operand of dense layers or attention
    that others read as well, such as the norm of a residual sum, is also stored in f32: the layers
    take far longer than the store, and the errors of a residual stream add up. Rounding moves up
    through operators that only move elements (maximum pooling, concatenation, reshapes). A
    concatenation is also rounded if only sums, scales, ReLU and means lead from it to rounded
    values: in dense blocks, every layer reads all layers before it. Softmax, norms, reductions and
    elementwise operators compute in f32; residual sums that feed no product directly are also
    stored in f32.

    Before:
        %2 = nn.relu(%1); %3 = nn.conv2d(%2, w); %4 = add(%2, %3)
    After:
        %5: bf16[...] = cast(%2, dtype="bf16"); %6: f32[...] = nn.conv2d(%5, w', out_dtype="f32")
        %7 = cast(%5, dtype="f32"); %8 = add(%7, %6)

    `keep_f32` holds names or globs of layers that stay unchanged. Two kinds of convolutions stay
    unchanged as well, because dot products do not make them faster: those in groups of several
    channels that do not make blocks of `min_channels` or that no dot product instruction computes,
    and those of fewer than `min_channels` input channels (the first layer of an image network). The
    latter are converted if a matrix unit or a dot product instruction can sum over the columns of a
    filter, too (`JoinColumns`); this takes `min_depth` numbers per line and `min_filters` filters.

    Attention rounds queries, keys, values and weights if dot product instructions multiply pairs;
    this takes `min_queries` queries. The softmax stays in f32.

    A declared `quantize` rule converts its own operator. The rule maps a call and the dtype to an
    expression of the same type that reads the operands through casts to the dtype, so that they are
    stored rounded. It returns None for a call that stays in f32.

    Preconditions: layouts are plain, weights are constants. Non-goals: selecting layers by their
    error (`clew.precision_report` reports it).
    """

    opt_level: ClassVar[int] = 0
    exactness: ClassVar[Exactness] = Exactness(
        "none", "operands of products are rounded to `bf16` or `f16`", "`precision=`"
    )

    dtype: str = "bf16"
    keep_f32: tuple[str, ...] = ()
    min_channels: int = CHANNELS_TO_NARROW
    min_depth: int = DEPTH_TO_NARROW
    min_filters: int = FILTERS_TO_NARROW
    min_queries: int = QUERIES_TO_NARROW

    def run(self, module: Module, ctx: PassContext) -> Module:
        return _Converter(self, ctx).rewrite_module(module)


@dataclass(frozen=True)
class _Ruled:
    """A call converted by a rule: the rule's expression, the operands of its parameters by id, and
    the nodes that round an operand.
    """

    made: Expr
    args: dict[int, Expr]
    casts: set[int]


def products_of(module: Module) -> list[Call]:
    """Returns the convolutions and matrix products of a module, including those in inner
    functions.
    """
    functions = [function for _, function in module]
    nodes = post_order(functions, into_functions=True)
    return [n for n in nodes if isinstance(n, Call) and _product(n)]


def narrowed_products(before: Module, after: Module) -> list[Call]:
    """Returns the products that the pass converted, in their form after the pass."""
    old = {call.id for call in products_of(before)}
    return [c for c in products_of(after) if c.id not in old and not _is_wide(c.args[0])]


class _Converter(Rewriter):
    """The memo maps an old value to an f32 value; if the value is stored rounded, to a cast of it.
    Every user gets a separate cast, which then fuses into that user.
    """

    def __init__(self, options: ConvertPrecision, ctx: PassContext) -> None:
        super().__init__()
        self._options = options
        self._ctx = ctx
        self._converted: set[int] = set()
        self._rounded: set[int] = set()
        self._both: set[int] = set()  # values stored rounded and in f32
        self._narrow: dict[int, Expr] = {}
        self._stored: set[int] = set()  # f32 values of which only the narrow form is stored
        self._ruled: dict[int, _Ruled] = {}

    def enter(self, function: Function) -> None:
        """Finds the products to convert, and the operands to store rounded: only so, or in f32,
        too.
        """
        only_rounded, operands = list[Expr](), list[Expr]()
        for call in post_order(function.body):
            if not isinstance(call, Call):
                continue
            if isinstance(call.op, Op) and call.op.quantize_rule is not None:
                only_rounded += self._ask_rule(call, call.op.quantize_rule)
            elif self._converts(call):
                self._converted.add(call.id)
                convolves = isinstance(call.op, Op) and call.op.traits.is_convolution
                (only_rounded if convolves else operands).extend(call.args[: factors(call)])
        self._rounded |= stored_rounded(function, [*only_rounded, *operands], _WIDE)
        self._both |= stored_in_both(
            function, self._rounded, only_rounded, _WIDE, lambda n: not self._reads_narrow(n)
        )

    def _converts(self, call: Call) -> bool:
        """Whether a call is a product to convert."""
        if call.op_name == _ATTENTION:
            return self._attends_in_pairs(call)
        if not _product(call) or argument_references(call.attrs):
            return False
        data, weight = call.args[:2]
        if not _is_wide(data) or not _is_wide(weight):
            return False
        if _product(call) == "weights" and not isinstance(weight, Constant):
            return False
        if self._is_kept(call):
            return False
        assert isinstance(call.op, Op)
        if call.op.traits.packs_weight:
            inner, groups = weight.tensor.shape[1], call.attrs.groups
            if groups > 1:
                return inner == 1 or self._fills_groups(weight.tensor, groups)
            if not isinstance(inner, int):
                return False
            few = inner < self._options.min_channels
            return not few or self._joins_depth(weight.tensor, call.attrs.dilation)
        return True

    def _reads_narrow(self, node: Expr) -> bool:
        """Whether a node reads all its operands rounded."""
        return node.id in self._converted or (node.id in self._rounded and moves(node, _WIDE))

    def _attends_in_pairs(self, call: Call) -> bool:
        """Whether an instruction multiplies pairs in both products of an attention, and there are
        enough queries for it to be worth packing the values; or whether they fill tiles.
        """
        target, dtype = self._ctx.target, self._options.dtype
        operands = call.args[: factors(call)]
        if target is None or argument_references(call.attrs) or not all(map(_is_wide, operands)):
            return False
        if self._is_kept(call):
            return False
        if attention_fills_tiles(call, dtype, target):
            return True
        if not any(unit.data == dtype for unit in target.dot_units):
            return False
        attrs = call.attrs
        query = dict(zip(attrs.q_layout, operands[0].tensor.shape, strict=True))
        static = all(a.tensor.is_static for a in operands)
        deep = static and query["D"] % 2 == 0 and query["S"] >= self._options.min_queries
        return bool(deep and attrs.k_layout.endswith("D"))

    def _is_kept(self, call: Call) -> bool:
        kept = any(fnmatchcase(n, p) for n in layer_names(call) for p in self._options.keep_f32)
        if kept:
            self._ctx.remark(call, "stays in f32: keep_f32 names it")
        return kept

    def _ask_rule(self, call: Call, rule: Callable[[Call, str], Expr | None]) -> list[Expr]:
        """Records the expression that an operator's rule makes of a call, over parameters, if any.
        Returns the operands that it rounds.

        Errors: T028 if the expression has another type than the call.
        """
        if argument_references(call.attrs) or self._is_kept(call):
            return []
        args = [a if isinstance(a, Constant) else Var(f"x{n}", a.type)
                for n, a in enumerate(call.args)]  # fmt: skip
        with building_for(call):
            made = rule(Call(call.op, args, call.attrs), self._options.dtype)
        if made is None:
            self._ctx.remark(call, f"stays in f32: the rule of {call.op_name} returned None")
            return []
        if made.type != call.type:
            raise GraphTypeError(
                "T028",
                f"{call.op_name}: its quantize rule returns {made.type} for {call.type}",
                hint="the rule may round operands only; cast the result back",
            )
        ruled = _Ruled(made, {a.id: b for a, b in zip(args, call.args, strict=True)}, set())
        casts = [n for n in post_order(made) if self._rounds(n) and n.children[0].id in ruled.args]
        ruled.casts.update(cast.id for cast in casts)
        self._ruled[call.id] = ruled
        return [ruled.args[cast.children[0].id] for cast in casts]

    def _rounds(self, node: Expr) -> bool:
        if not isinstance(node, Call) or node.op_name != "cast":
            return False
        return bool(node.attrs.dtype == self._options.dtype)

    def _by_rule(self, ruled: _Ruled) -> Expr:
        """Returns the rule's expression over the current operands."""
        found: dict[int, Expr] = {}
        for node in post_order(ruled.made):
            if node.id in ruled.args:
                found[node.id] = self.memo[ruled.args[node.id].id]
            elif node.id in ruled.casts:
                found[node.id] = self._rounded_value(ruled.args[node.children[0].id])
            else:
                found[node.id] = rebuild(node, [found[c.id] for c in node.children])
        return found[ruled.made.id]

    def _fills_groups(self, weight: TensorType, groups: int) -> bool:
        """Whether an instruction that multiplies pairs sums over the channels of each group: those
        of its image and of its result make whole blocks. AlterLayout blocks images between windows
        of one pixel only if the channels of a group fill vectors.
        """
        target, dtype = self._ctx.target, self._options.dtype
        if target is None or not weight.is_static:
            return False
        filters, inner, *taps = weight.concrete
        outer, least = filters // groups, self._options.min_channels
        if all(n == 1 for n in taps):
            least = target.vector_lanes(_WIDE)
        dots = any(unit.data == dtype for unit in target.dot_units)
        return dots and outer % least == 0 and inner % least == 0

    def _joins_depth(self, weight: TensorType, dilation: tuple[int, ...]) -> bool:
        """Whether the columns of a filter, together with its few channels, are deep enough: for a
        matrix unit with channels padded to an even number, or for an instruction that multiplies
        pairs.
        """
        target, dtype = self._ctx.target, self._options.dtype
        if target is None or not weight.is_static:
            return False
        filters, inner, *_, columns = weight.concrete
        if target.tile_shape(dtype, dtype) is not None:
            depth = columns * (inner + inner % 2)
        elif any(unit.data == dtype for unit in target.dot_units) and dilation[-1] == 1:
            depth = columns * inner
        else:
            return False
        return depth >= self._options.min_depth and filters >= self._options.min_filters

    def rebuilt(self, node: Expr, children: Sequence[Expr]) -> Expr:
        if self._reads_narrow(node):
            return node  # built from rounded operands
        own: dict[int, Expr] = {}
        for child in children:
            if child.id in self._stored and child.id not in own:
                own[child.id] = get_op("cast")(self._narrow[child.id], dtype=_WIDE)
        return rebuild(node, [own.get(c.id, c) for c in children])

    def rewrite_call(self, old: Call, new: Call) -> Expr:
        result: Expr = new
        if old.id in self._ruled:
            result = self._by_rule(self._ruled[old.id])
        elif old.id in self._converted:
            count = factors(old)
            args = [self._rounded_value(a) for a in old.args[:count]]
            args += [self.memo[a.id] for a in old.args[count:]]
            result = Call(old.op, args, old.attrs.with_(out_dtype=_WIDE))
        elif old.id in self._rounded and moves(old, _WIDE):
            args = [self._rounded_value(a) for a in old.args]
            return self._widened(old, old.with_args(args))
        if old.id not in self._rounded or old.id in self._both:
            return result
        if old.op_name == "nn.gelu" and isinstance(result, Call) and self._options.dtype == "bf16":
            result = Call(result.op, result.args, result.attrs.with_(accuracy="bf16"))
        return self._widened(old, get_op("cast")(result, dtype=self._options.dtype))

    def _widened(self, old: Expr, narrow: Expr) -> Expr:
        """Returns the old value for users that read f32: a cast from the stored value."""
        wide: Expr = get_op("cast")(narrow, dtype=_WIDE)
        self._narrow[wide.id] = narrow
        self._stored.add(wide.id)
        replaces(old, narrow)
        replaces(wide, narrow)  # every user gets a separate cast, and this one is removed
        return wide

    def _rounded_value(self, old: Expr) -> Expr:
        """Returns an operand in the narrow dtype."""
        value = self.memo[old.id]
        found = self._narrow.get(value.id)
        if found is None:
            with self.covers(old):
                found = in_dtype(value, self._options.dtype)
            if isinstance(value, Constant):
                replaces(value, found)
            self._narrow[value.id] = found
        return found


def _is_wide(value: Expr) -> bool:
    return has_dtype(value, _WIDE)


def _product(call: Call) -> str:
    """Returns the kind of product that a call computes (`Traits.product`)."""
    return call.op.traits.product if isinstance(call.op, Op) else ""
