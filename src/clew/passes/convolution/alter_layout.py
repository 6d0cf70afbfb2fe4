"""AlterLayout: lays tensors out for vectors and register tiles.

The file is longer than others: layouts of all operators are decided in one walk over one memo.
`packing.py` decides which weights are packed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import field, replace
from typing import ClassVar, Final

from clew.cost.convolution import (
    WINDOW,
    ConvLayer,
    direct_cycles,
    winograd_cycles,
)
from clew.cost.policy.convolutions import USUAL_WINOGRAD_TILES, WINOGRAD_GAIN
from clew.cost.policy.layouts import (
    BLOCKS_OF_CHANNELS,
    BLOCKS_OF_FEW_CHANNELS,
    LEAST_FILLED_BLOCKS,
    LEAST_FILLED_DEPTH,
    LONGER_BLOCKS_OF_GROUPS,
    LONGER_BLOCKS_OF_HALF_LINES,
    VECTORS_OF_CONV_PANELS,
    VECTORS_OF_DENSE_PANELS,
    VECTORS_OF_PANELS,
)
from clew.cost.products import dots_gain, multiply_adds_per_cycle
from clew.ir.dims import Dim, typical
from clew.ir.expr import Attrs, Call, Constant, Expr, Function
from clew.ir.module import Module
from clew.ir.rewrite import Rewriter, rebuild
from clew.ir.types import TensorType, is_float
from clew.ir.visit import post_order
from clew.ops.convolution.stages import product_group
from clew.ops.math.matmul import MOST_BATCH_AXES, matrices_layout
from clew.ops.movement.layouts import parse_layout
from clew.ops.registry import Op, argument_references, get_op
from clew.passes.attention_tiles import attention_fills_tiles
from clew.passes.base import Pass, PassContext
from clew.passes.convolution.packing import (
    packs_filters,
    packs_integers,
    packs_matrix,
    with_whole_groups,
)
from clew.passes.decisions import Decision, Decisions, Defaults, subject_of
from clew.passes.precision.integer_operands import unturned
from clew.patterns.exactness import REORDERED, Exactness
from clew.support.dataclass import dataclass
from clew.support.errors import GraphTypeError
from clew.te.analysis import Kind

_PLAIN: Final = "NCHW"
_CHANNELS_LAST: Final = "NHWC"
_FROM_CHANNELS_LAST: Final = (0, 3, 1, 2)
_TO_CHANNELS_LAST: Final = (0, 2, 3, 1)
_POINTWISE: Final = (Kind.ELEMENTWISE, Kind.BROADCAST)


@dataclass(frozen=True)
class AlterLayout(Pass):
    """Stores images in blocks of channels (`NCHW16c`), and weights in the order kernels read them.

    The weight of a convolution becomes `OIHW<b>i<n>o`, where `n` output channels are the vectors of
    a register tile, and its padding becomes an operator before it. A convolution of few input
    channels reads the plain image or, where a matrix unit also sums over the columns of a filter,
    short zero-padded blocks (`NCHW4c`). A convolution of video clips (`nn.conv3d_frames`) keeps its
    padding between frames. The weight of a depthwise convolution becomes `OIHW<b>o`, and the
    convolution keeps its padding. Pooling, elementwise operators and concatenations take the layout
    of their operands. Dense weights become `NK<n>n`, with the last block zero-padded. Where layouts
    meet, one `layout_transform` per value converts between them; model outputs are plain.

    Before:
        %1: f32[1, 64, 56, 56] = nn.conv2d(%0, w, padding=[1, 1, 1, 1]); %2 = add(%1, b)
    After:
        %3: f32[1, 4, 56, 56, 16]:NCHW16c = layout_transform(%0, "NCHW", "NCHW16c")
        %4 = pad(%3, pads=[0, 0, 1, 1, 0, 0, 0, 1, 1, 0])
        %5 = nn.conv2d(%4, layout_transform(w), weight_layout="OIHW16i64o"); %6 = add(%5, b')

    The block of C channels is the largest of 32, 16, 8 and 4 that divides C and is no longer than a
    vector (of the narrowest data that a convolution of the function reads, so that all agree), or
    than two vectors of sums where dot products compute these. If none divides C, the tensor stays
    plain. Images of 1x1 grouped convolutions whose groups fill no whole vector also stay plain
    (their lanes are pixels), and so do the channel-wise operators after them. Other grouped
    convolutions of few channels read a plain image and write blocks. Operators that read all
    channels at positions that values determine (regions) read plain images with channels last,
    unless they read fewer positions than there are. The last block of a result is zero-padded (24
    channels to 32, 45 to 48, 3 to 4) where whole vectors are worth it, or where no block divides
    the channels and either few are missing or the data are blocked; the operators that follow must
    not turn zeros into infinities. Likewise the image of a window if few channels are missing and
    it would else stay plain, or if Winograd's algorithm, which needs whole vectors, may compute the
    convolution. On a matrix unit, images are zero-padded to blocks that fill the depth of its tiles
    (26 or 52 channels to blocks of 32), if that saves more than the conversion takes; images of
    integers that no block divides, to blocks for dot products (17 channels to 20). `bf16` data get
    whole blocks unless a concatenation joins them. Weights of `bf16`, `i16` and 8 bits hold as many
    inputs as fit 32 bits together, innermost: `OHWI32o2i`, `NK32n2k`.

    `decisions` may choose another number of vectors for the panels of a weight.

    A weight that is not constant is packed in each run if the convolution has many pixels. So are
    the matrices of a batch (`b_layout`), if a matrix unit or dot products then multiply them.
    Matrices of integers that an instruction multiplies are packed at any sizes, and both operands
    get zeros after the depth up to whole dot groups.
    Constant matrices that an index selects (`nn.gather_matmul`) are packed like weights.
    Attention on a matrix unit transposes its values (`transposes_values`).

    Preconditions: layouts are plain; FoldConstant runs after it.
    """

    opt_level: ClassVar[int] = 3
    exactness: ClassVar[Exactness] = REORDERED

    blocks: tuple[int, ...] = BLOCKS_OF_CHANNELS
    max_tile_vectors: int = VECTORS_OF_CONV_PANELS
    dense_vectors: int = VECTORS_OF_DENSE_PANELS
    decisions: Decisions = field(default_factory=Defaults)

    def run(self, module: Module, ctx: PassContext) -> Module:
        if ctx.target is None:
            return module
        return _Alterer(self, ctx).rewrite_module(module)


class _Alterer(Rewriter):
    """The memo maps a plain node to its value in the value's current layout (`layout` of the
    type).
    """

    rebuilds = False
    of_function = ("_most",)

    def __init__(self, options: AlterLayout, ctx: PassContext) -> None:
        super().__init__()
        self._options = options
        self._ctx = ctx
        self._bodies: set[int] = set()
        self._users: dict[int, list[Expr]] = {}
        self._converted: dict[tuple[int, str], Expr] = {}
        self._padded: dict[tuple[int, tuple[int, ...]], Expr] = {}
        self._turned: dict[int, Expr] = {}
        self._kept_plain: set[int] = set()  # images left plain for a convolution, and their users
        self._most = 0  # channels in a block of results, the same for all convolutions

    def enter(self, function: Function) -> None:
        self._bodies.add(function.body.id)
        self._most = 0
        for node in post_order(function.body):
            for child in dict.fromkeys(node.children):
                self._users.setdefault(child.id, []).append(node)
            if isinstance(node, Call) and _packs_weight(node) and node.attrs.groups == 1:
                self._most = max(self._most, self._lanes_of_block(node))

    # --- operators that change ---

    def rewrite_call(self, old: Call, new: Call) -> Expr:
        altered = None if any(map(_is_blocked, (old, *old.args))) else self._altered(old)
        result = altered or self._over_plain(old)
        return self._to(result, _layout_of(old), old, old) if old.id in self._bodies else result

    def _altered(self, old: Call) -> Expr | None:
        """Returns the call over values in other layouts, or `None` if it needs plain ones."""
        if not isinstance(old.op, Op) or not isinstance(old.type, TensorType):
            return None
        if argument_references(old.attrs):
            return None
        if self._stays_plain(old):
            self._kept_plain.add(old.id)
            return None
        if _packs_weight(old):
            return self._conv(old)
        if old.attrs.get("weight_layout", "").startswith(("NK", "KN")):
            return self._dense(old)
        if old.op.name == "nn.matmul" and old.args[1].tensor.rank == 2:
            return self._dense(
                get_op("nn.dense")(*old.args, weight_layout="KN", out_dtype=old.attrs.out_dtype)
            )
        if old.op.name == "nn.matmul":
            return self._matmul(old)
        if old.op.name == "nn.gather_matmul":
            return self._gather_matmul(old)
        if old.op.name == "nn.attention":
            return self._attention(old)
        if old.op.name == "transpose":
            return self._transpose(old)
        layout = self._layout_of_args(old)
        if not layout:
            return self._channels_last(old)
        filled = any(_is_filled(self.memo[a.id], a) for a in old.args)
        if filled and not old.op.keeps_finite([a.tensor for a in old.args], old.attrs):
            return None
        try:
            if old.op.layout_rule is not None:
                built = self._by_rule(old, layout)
            elif old.op.name == "concatenate":
                built = self._concatenate(old)
            elif old.op.name == "pad":
                built = self._pad(old, layout)
            elif self._ctx.kind(old) in _POINTWISE:
                built = self._pointwise(old)
            else:
                return None
        except GraphTypeError as error:
            self._ctx.remark(old, f"{old.op.name} does not take {layout}: {error.message}")
            return None
        except (TypeError, ValueError, IndexError, AssertionError):  # of a fixed number of axes
            self._ctx.remark(old, f"{old.op.name} does not take {layout}")
            return None
        if built is not None and not _is_blocked(built):
            self._ctx.remark(old, f"{old.op.name} does not keep the layout {layout}")
            return None
        return built

    def _stays_plain(self, old: Call) -> bool:
        """Whether an image is better left plain: the image of a convolution of many small groups,
        whose channels fill no block but whose pixels fill vectors, and all channel-wise operators
        after it.
        """
        assert isinstance(old.op, Op)
        follows = any(a.id in self._kept_plain for a in old.args)
        if old.op.name != "nn.conv2d":
            return follows and isinstance(old.type, TensorType) and old.tensor.rank >= 4
        weight, groups = old.args[1].tensor, old.attrs.groups
        channels, inner, *kernel = weight.shape
        if groups == 1 or not weight.is_static or old.attrs.data_layout != _PLAIN:
            return False
        if inner == 1:
            return follows
        assert isinstance(inner, int)
        assert isinstance(channels, int)
        lanes = self._lanes(old)
        moves = any(old.attrs.padding) or any(s != 1 for s in old.attrs.strides)
        pointwise = all(k == 1 for k in kernel) and not moves
        if not pointwise or self._block(math.gcd(inner, channels // groups), lanes) == lanes:
            return False
        self._ctx.remark(old, f"stays plain: {inner} channels per group fill no block of {lanes}")
        return True

    def _over_plain(self, old: Expr) -> Expr:
        """Returns the node over its children in their original layouts."""
        children = [self._to(self.memo[c.id], _layout_of(c), c, old) for c in old.children]
        return rebuild(old, children)

    def rewrite_other(self, old: Expr, new: Expr) -> Expr:
        return self._over_plain(old)

    def rewrite_control(self, old: Expr, new: Expr) -> Expr:
        return self._over_plain(old)

    def rewrite_tuple_get_item(self, old, new):  # type: ignore[no-untyped-def]
        return super().rewrite_tuple_get_item(old, self._over_plain(old))  # type: ignore[arg-type]

    # --- layers ---

    def _conv(self, old: Call) -> Expr | None:
        data, weight = old.args[:2]
        plain = old.attrs.data_layout == _PLAIN and not old.attrs.out_layout
        if not plain or not packs_filters(old) or not self._packs(old):
            return None
        value = self.memo[data.id]
        channels, inner, groups = self._stored(old, value)
        found = self._conv_layouts(old, channels, inner, groups)
        if found is not None and found[0][0] != _layout_of(value) and _is_filled(value, data):
            channels, inner, groups = self._stored(old, data)  # another layout drops the filling
            found = self._conv_layouts(old, channels, inner, groups)
        if found is None:
            self._ctx.remark(
                old, f"stays plain: no block divides {inner * groups} and {channels} channels"
            )
            return None
        (data_layout, weight_layout), attrs = found
        value = self._to(value, data_layout, data, old)
        if inner > 1 or groups == 1:
            around, kept = _spatial_padding(old.attrs.padding)
            value = self._split_padding(value, around, data_layout)
            attrs = attrs.with_(padding=kept)
        source = self.memo[weight.id]
        missing = inner - weight.tensor.shape[1]
        if missing and product_group(weight.tensor.dtype):  # groups are padded, not blocks
            rank = weight.tensor.rank
            source = get_op("pad")(source, pads=(0,) * (rank + 1) + (missing,) + (0,) * (rank - 2))
        packed = get_op("layout_transform")(
            source, src_layout=old.attrs.weight_layout, dst_layout=weight_layout
        )
        return Call(old.op, [value, packed], attrs)

    def _stored(self, old: Call, value: Expr) -> tuple[int, int, int]:
        """Returns the numbers of filters, of channels that each reads, and of groups of a
        convolution that reads all channels that a value stores.
        """
        channels, inner = old.args[1].tensor.shape[:2]
        groups = old.attrs.groups
        assert isinstance(channels, int)
        assert isinstance(inner, int)
        if _is_filled(value, old.args[0]):
            filled = value.tensor.shape[1] * _block_of(value.tensor)
            assert isinstance(filled, int)
            if groups == 1:
                inner = filled
            elif inner == 1 and groups == channels:
                channels = groups = filled
        block = self._block_of_tiles(old, inner) or self._block_of_window(old, channels, inner)
        return channels, _filled_up(inner, block or 1), groups

    def _conv_layouts(
        self, old: Call, channels: int, inner: int, groups: int
    ) -> tuple[tuple[str, str], Attrs] | None:
        """Returns the layouts of data and weight, and the attributes of the altered convolution."""
        assert isinstance(old.op, Op)
        lanes = self._lanes(old)
        of_result = self._block(channels, self._most if groups == 1 else lanes)
        if groups == 1:
            # Whole vectors with some zero channels may do more work than shorter blocks.
            whole = self._lanes_of_sums(old.args[0].tensor.dtype)
            if product_group(old.args[0].tensor.dtype) and not self._is_joined(old):
                whole = self._most or whole
            if of_result * _filled_up(channels, whole) < whole * channels and (
                of_result or LEAST_FILLED_BLOCKS * _filled_up(channels, whole) <= channels
            ):
                of_result = whole
            elif not of_result and (
                self._block(inner, lanes) or (channels > 1 and _needs_blocks(old))
            ):
                of_result = self._block_of_odd(channels, whole)
            block = self._block_of_tiles(old, inner) or self._block(inner, lanes) or of_result
        elif inner == 1:
            block = of_result
        else:
            block = self._block(math.gcd(inner, channels // groups), lanes)
            of_group = self._block(channels // groups, lanes)
            longer = of_group > self._longer_blocks() * block
            if longer and not product_group(old.args[0].tensor.dtype):
                block = of_group  # of the result
        if not block or old.op.layout_rule is None:
            return None
        stored = _filled_up(channels, of_result or 1)
        tile = block
        if groups == 1:
            tile = of_result * self._panel(old, self._tile_vectors(stored, of_result))
        if of_result > lanes:
            tile = of_result  # covers several vectors
        if product_group(old.args[0].tensor.dtype) and of_result > self._lanes_of_sums("f32"):
            tile = of_result  # covers two vectors of sums
        data, weight, *rest = (a.tensor for a in old.args)
        weight = weight.with_(shape=(channels, inner, *weight.shape[2:]))
        attrs = old.attrs.with_(groups=groups)
        types = (data, weight, *rest)
        found = old.op.layout_rule(attrs, types, f"NCHW{block}c", weight_block=tile or block)
        if found is None:
            return None
        arguments, attrs, _ = found
        out_layout = f"NCHW{of_result if groups == 1 else block}c" if of_result else _PLAIN
        return arguments, attrs.with_(out_layout=out_layout)

    def _longer_blocks(self) -> float:
        """Returns how many times as long blocks of a group's results must be to read a plain
        image.
        """
        assert self._ctx.target is not None
        if self._ctx.target.has_half_lines:
            return LONGER_BLOCKS_OF_HALF_LINES
        return LONGER_BLOCKS_OF_GROUPS

    def _panel(self, old: Call, vectors: int) -> int:
        """Returns the number of vectors in a panel of a weight: `vectors`, or another one that was
        measured to be better.
        """
        options = dict.fromkeys((vectors, *VECTORS_OF_PANELS)) if vectors > 1 else {vectors: None}
        if len(options) == 1 or not old.tensor.is_static:
            return vectors
        decision = Decision(
            "panel", subject_of(old), tuple(map(str, options)), str(vectors), old.layers
        )
        chosen, remark = self._options.decisions.choose(decision)
        if remark:
            self._ctx.remark(old, remark)
        return int(chosen)

    def _block_of_odd(self, channels: int, whole: int) -> int:
        """Returns the shortest block that needs no more blocks for the channels than whole vectors
        do. In blocked data the lanes of pixels lie apart, and would be gathered one by one.
        """
        whole = min(whole, max(self._options.blocks))
        blocks = [b for b in self._options.blocks if b <= whole]
        return min(b for b in blocks if -(-channels // b) == -(-channels // whole))

    def _block_of_tiles(self, old: Call, inner: int) -> int:
        """Returns the block size that input channels are zero-padded to for a matrix unit; 0 if no
        padding is needed or worth it. It sums over few channels together with the columns of a
        filter. Of more channels, it sums over a block at a time, and short blocks leave most of its
        depth empty.
        """
        assert self._ctx.target is not None
        data, weight = (a.tensor for a in old.args[:2])
        group = product_group(data.dtype)
        tile = self._ctx.target.tile_shape(data.dtype, weight.dtype)
        if not group or old.attrs.groups > 1:
            return 0
        if tile is None:
            return self._block_of_dots(old, inner, group)
        few = next((b for b in BLOCKS_OF_FEW_CHANNELS if group <= b and inner <= b), 0)
        if not few:
            return self._block_of_depth(old, inner, tile)
        columns = weight.shape[-1]
        deep = isinstance(columns, int) and columns * few >= LEAST_FILLED_DEPTH * tile[2]
        return few if deep and not self._block(inner, inner) else 0

    def _block_of_dots(self, old: Call, inner: int, group: int) -> int:
        """Returns the longest block with few zero channels for input channels of a convolution of
        integers, if no block divides them: dot products read neighbors in blocks. 0 if one does, or
        if the channels are so few that the columns of a filter are neighbors instead.
        """
        if is_float(old.args[0].tensor.dtype) or inner <= group or self._block(inner, inner):
            return 0
        blocks = sorted((b for b in self._options.blocks if b <= self._lanes(old)), reverse=True)
        few = (b for b in blocks if LEAST_FILLED_BLOCKS * _filled_up(inner, b) <= inner)
        return next(few, min(blocks, default=0))

    def _block_of_depth(self, old: Call, inner: int, tile: tuple[int, int, int]) -> int:
        """Returns the block that fills the depth of a matrix unit best, if the steps that it saves
        take longer than converting the image.
        """
        assert self._ctx.target is not None
        outer, _, *taps = old.args[1].tensor.concrete
        dtype, costs = old.args[0].tensor.dtype, self._ctx.target.costs
        own = self._block(inner, inner) or product_group(dtype)
        block = self._block_of_odd(inner, tile[2])
        saved = inner / own - -(-inner // block)
        if own * LEAST_FILLED_BLOCKS > block or saved <= 0:
            return 0
        steps = math.prod(taps) * saved * -(-outer // tile[1])
        converted = 2 * _filled_up(inner, block) / self._ctx.target.vector_lanes(dtype) * costs.move
        return block if steps * costs.tile_step / tile[0] > converted else 0

    def _block_of_window(self, old: Call, channels: int, inner: int) -> int:
        """Returns the block size that an image's channels are zero-padded to, if a window would
        else read a plain image, or if that makes Winograd's algorithm possible, which needs whole
        vectors, and it is expected to be faster; 0 if no padding is needed.
        """
        data, weight = (a.tensor for a in old.args[:2])
        lanes, kernel = self._lanes(old), weight.shape[-2:]
        if old.attrs.groups > 1 or product_group(data.dtype) or kernel == (1, 1) or inner <= lanes:
            return 0
        if self._block(inner, lanes) == lanes:
            return 0
        blocked = any(self._block(n, lanes) for n in (channels, inner))
        fits = all(LEAST_FILLED_BLOCKS * _filled_up(n, lanes) <= n for n in (channels, inner))
        gains = kernel == (WINDOW, WINDOW) and old.attrs.strides[-2:] == (1, 1)
        gains = gains and self._gains_by_transforms(old, channels, inner, blocked)
        return lanes if gains or (fits and not blocked) else 0

    def _gains_by_transforms(self, old: Call, channels: int, inner: int, blocked: bool) -> bool:
        """Whether Winograd's algorithm on zero-padded blocks, conversions included, is expected to
        be faster than a direct convolution, which pads only results in blocks.
        """
        target, lanes = self._ctx.target, self._lanes(old)
        assert target is not None
        if old.tensor.rank != 4 or not old.tensor.is_static:
            return False
        batch, _, height, width = old.tensor.concrete
        stored = [_filled_up(n, lanes) for n in (inner, channels)]
        dtype = old.tensor.dtype
        outer = stored[1] if blocked else channels
        direct = ConvLayer(batch, inner, outer, height, width, dtype=dtype)
        filled = replace(direct, inner=stored[0], outer=stored[1])
        dilation = old.attrs.dilation
        cycles = min(winograd_cycles(filled, n, target, dilation) for n in USUAL_WINOGRAD_TILES)
        converted = filled.pixels * sum(stored) / lanes * target.costs.move
        return WINOGRAD_GAIN * (cycles + converted) <= direct_cycles(direct, target)

    def _lanes(self, old: Call) -> int:
        """Returns the lanes of a vector; for dot products of floats, those of a vector of sums, so
        that all floats agree on a block, and for those of integers, at most two vectors of sums, so
        that a convolution reads blocks of the size that its predecessor writes.
        """
        assert self._ctx.target is not None
        dtype, target = old.args[0].tensor.dtype, self._ctx.target
        lanes = target.vector_lanes(dtype)
        if product_group(dtype) and not any(unit.data == dtype for unit in target.tile_units):
            vectors = 1 if is_float(dtype) else 2
            return min(lanes, vectors * self._lanes_of_sums(dtype))
        return lanes

    def _lanes_of_block(self, old: Call) -> int:
        """Returns the largest number of channels in a block that a convolution reads contiguously,
        or 0 if the convolution stays plain.
        """
        packs = packs_filters(old) and old.args[0].tensor.rank == 4 and self._packs(old)
        return self._lanes(old) if packs else 0

    def _is_joined(self, old: Expr) -> bool:
        """Whether a concatenation reads the result, directly or through channel-wise operators. A
        concatenation has no room for the zero channels that pad a block.
        """
        return self._reaches(old, lambda user: user.op_name == "concatenate")

    def _lanes_of_sums(self, dtype: str) -> int:
        """Returns the number of lanes in a vector of sums, which have at least 32 bits."""
        assert self._ctx.target is not None
        return self._ctx.target.vector_lanes("f64" if dtype == "f64" else "f32")

    def _packs(self, old: Call) -> bool:
        """Whether kernels are faster on packed operands. This holds for floats, and for integers if
        the target has instructions for them.
        """
        assert self._ctx.target is not None
        data, weight = (a.tensor.dtype for a in old.args[:2])
        if is_float(data):
            return True
        target = self._ctx.target
        fit = old.attrs.get("pairs_fit", False)
        return bool(
            target.dot_lanes(data, weight, pairs_fit=fit) or target.tile_shape(data, weight)
        )

    def _block(self, channels: int, lanes: int) -> int:
        """Returns the block size for a number of channels, or 0 if they stay plain."""
        fitting = (b for b in self._options.blocks if b <= lanes and channels % b == 0)
        return next(fitting, 0)

    def _tile_vectors(self, channels: int, block: int) -> int:
        """Returns the number of vectors of output channels in a register tile. The weights of the
        last tile may be zero-padded.
        """
        blocks = channels // block if block else 1
        return max(1, min(blocks, self._options.max_tile_vectors))

    def _split_padding(self, value: Expr, padding: tuple[int, ...], layout: str) -> Expr:
        """Returns the zero-padded image; equal padding of the same value is shared."""
        if not any(padding):
            return value
        found = self._padded.get((value.id, padding))
        if found is None:
            top, left, bottom, right = padding
            rest = (0,) * (value.tensor.rank - 4)
            pads = (0, 0, top, left, *rest, 0, 0, bottom, right, *rest)
            found = get_op("pad")(value, pads=pads)
            self._padded[value.id, padding] = found
        return found

    def _dense(self, old: Call) -> Expr | None:
        data, *others = old.args
        assert self._ctx.target is not None
        target = self._ctx.target
        if old.attrs.weight_layout == "NK" and len(others) == 1:
            by_rows = self._by_rows(old, data, others[0])
            if by_rows is not None:
                return by_rows
        weights = {n: w for n, w in enumerate(others) if packs_matrix(old, w, target)}
        if not weights or old.attrs.weight_layout not in ("NK", "KN"):
            return self._by_columns(old)
        units, dtype = old.tensor.shape[-1], data.tensor.dtype
        lanes = self._lanes_of_sums(dtype)
        free = not isinstance(units, int) and not packs_integers(old, target)
        if free or not self._packs(old) or lanes == 1:
            return self._by_columns(old)
        if 2 * typical(units) <= lanes:
            self._ctx.remark(old, f"weight stays plain: {units} units fill at most half a vector")
            return None
        block = self._block_of_columns(old, units, lanes)
        args = [self._to(self.memo[a.id], _PLAIN, a, old) for a in old.args]
        layouts = []
        for number, weight in weights.items():
            group = product_group(dtype) or product_group(weight.tensor.dtype)
            layouts.append(f"NK{block}n{group}k" if group else f"NK{block}n")
            args[1 + number] = self._packed(weight, old.attrs.weight_layout, layouts[-1])
        if packs_integers(old, target) and not isinstance(others[0], Constant):
            args[0] = with_whole_groups(args[0], -1, product_group(dtype))
        names = ("weight_layout", "parts_layout")[: len(layouts)]
        attrs = old.attrs.with_(**dict(zip(names, layouts, strict=True)), units=units)
        return Call(old.op, args, attrs)

    def _by_columns(self, old: Call) -> Expr | None:
        """Transposes a matrix of the run whose columns are multiplied with a number of rows that
        only the run knows: each tile of rows would gather its elements.
        """
        data, weight, *others = old.args
        rows = data.tensor.shape[:-1]
        if others or isinstance(weight, Constant) or all(isinstance(n, int) for n in rows):
            return None
        if old.attrs.weight_layout != "NK" or weight.tensor.rank != 2:
            return None
        left, right = (self._to(self.memo[x.id], _PLAIN, x, old) for x in old.args)
        turned = get_op("transpose")(right, axes=(1, 0))
        return Call(old.op, [left, turned], old.attrs.with_(weight_layout="KN"))

    def _by_rows(self, old: Call, data: Expr, matrix: Expr) -> Expr | None:
        """Multiplies rows whose number only the run knows with the rows of a matrix of the run: in
        place if they are few, and with a packed copy in the same kernel otherwise.
        """
        a, b = data.tensor, matrix.tensor
        if isinstance(matrix, Constant) or a.rank < 2 or old.attrs.get("parts", 1) != 1:
            return None
        if {a.dtype, b.dtype, old.tensor.dtype} not in ({"f32"}, {"f64"}):
            return None
        rows = a.shape[:-1] if b.rank == 2 else a.shape[-2:-1]
        if all(isinstance(n, int) for n in rows):
            return None
        assert self._ctx.target is not None
        units, depth = b.shape[-2:]
        layout, few = "KN", 1
        if isinstance(depth, int):
            sizes = depth, typical(units), a.dtype, self._ctx.target
            few = next(n for n in range(2, depth + 2) if not dots_gain(n, *sizes)) - 1
        if b.rank == 2 and isinstance(depth, int) and isinstance(units, int):
            lanes = self._lanes_of_sums(a.dtype)
            if 2 * units <= lanes or lanes == 1:
                return None
            layout = f"NK{self._block_of_columns(old, units, lanes)}n"
        left, right = (self._to(self.memo[x.id], _PLAIN, x, old) for x in (data, matrix))
        return get_op("nn.matmul_by_rows")(left, right, least_rows=few + 1, packed_layout=layout)

    def _block_of_columns(self, old: Call, units: Dim, lanes: int) -> int:
        """Returns the number of columns in a panel of a packed matrix."""
        several = typical(units) > lanes
        return lanes * (self._panel(old, self._options.dense_vectors) if several else 1)

    def _one_row(self, old: Call) -> Expr | None:
        """Multiplies one row with a transposed matrix as the matrix with a column, which reads the
        matrix where it lies.
        """
        (a, b), turned = (x.tensor for x in old.args), old.args[1]
        if not isinstance(turned, Call) or turned.op_name != "transpose":
            return None
        if a.rank != b.rank or a.rank < 2:
            return None
        swapped = (*range(a.rank - 2), a.rank - 1, a.rank - 2)
        if tuple(turned.attrs.axes) != swapped or isinstance(turned.args[0], Constant):
            return None
        if a.shape[-2] != 1:
            return self._by_rows(old, old.args[0], turned.args[0])
        row, matrix = (
            self._to(self.memo[x.id], _PLAIN, x, old) for x in (old.args[0], turned.args[0])
        )
        column = get_op("transpose")(row, axes=swapped)
        return get_op("transpose")(Call(old.op, [matrix, column], old.attrs), axes=swapped)

    def _matmul(self, old: Call) -> Expr | None:
        """Packs the matrices of a batch if that lets an instruction for narrow products multiply
        them, and saves more time than it takes.
        """
        a, b = (x.tensor for x in old.args)
        group, lead = product_group(a.dtype), b.rank - 2
        if not group:
            return self._one_row(old)
        if a.rank < 2 or lead < 1 or lead > MOST_BATCH_AXES or old.attrs.b_layout != "KN":
            return None
        assert self._ctx.target is not None
        if not packs_integers(old, self._ctx.target):
            whole = b.is_static and b.concrete[-2] % group == 0
            if not whole or not self._gains_by_packing(old):
                return None
        units, lanes = b.shape[-1], self._lanes_of_sums(a.dtype)
        if 2 * typical(units) <= lanes:
            return None
        block = lanes * (self._options.dense_vectors if typical(units) > lanes else 1)
        layout = f"NK{block}n{group}k"
        matrix = unturned(old.args[1])
        left = self._to(self.memo[old.args[0].id], _PLAIN, old.args[0], old)
        packed = self._packed(matrix, "KN" if matrix is old.args[1] else "NK", layout)
        args = [with_whole_groups(left, -1, group), packed]
        return Call(old.op, args, old.attrs.with_(b_layout=layout, units=units))

    def _packed(self, matrix: Expr, plain: str, layout: str) -> Expr:
        """Returns matrices, perhaps a batch of them, in another layout; products share the copy."""
        key = (matrix.id, plain + layout)
        found = self._converted.get(key)
        if found is None:
            lead = matrix.tensor.rank - len(plain)
            group = parse_layout(layout).factor("K")
            value = self.memo[matrix.id]
            if not isinstance(value, Constant) and not is_float(value.tensor.dtype):
                value = with_whole_groups(value, plain.index("K") - len(plain), group)
            found = get_op("layout_transform")(
                value,
                src_layout=matrices_layout(plain, lead),
                dst_layout=matrices_layout(layout, lead),
            )
            self._converted[key] = found
        return found

    def _gather_matmul(self, old: Call) -> Expr | None:
        """Packs constant matrices that are selected by index."""
        a, b = (x.tensor for x in old.args[:2])
        lanes = self._lanes_of_sums(a.dtype)
        if not isinstance(old.args[1], Constant) or not b.is_static or old.attrs.b_layout != "NK":
            return None
        units = b.concrete[1]
        if lanes == 1 or 2 * units <= lanes:
            return None
        layout = f"NK{lanes * (self._options.dense_vectors if units > lanes else 1)}n"
        args = [self._to(self.memo[x.id], _PLAIN, x, old) for x in old.args]
        args[1] = get_op("layout_transform")(
            args[1], src_layout=matrices_layout("NK", 1), dst_layout=matrices_layout(layout, 1)
        )
        return Call(old.op, args, old.attrs.with_(b_layout=layout, units=units))

    def _attention(self, old: Call) -> Expr | None:
        """Lays values out for a matrix unit."""
        if not attention_fills_tiles(old, old.args[0].tensor.dtype, self._ctx.target):
            return None
        args = [self._to(self.memo[x.id], _PLAIN, x, old) for x in old.args]
        return Call(old.op, args, old.attrs.with_(transposes_values=True))

    def _gains_by_packing(self, old: Call) -> bool:
        """Whether the products of a matrix's rows gain more than packing the other matrix takes."""
        assert self._ctx.target is not None
        a, b = (x.tensor for x in old.args)
        costs, lanes = self._ctx.target.costs, self._ctx.target.vector_lanes(a.dtype)
        rate = multiply_adds_per_cycle(self._ctx.target, a.dtype, b.dtype)
        plain = costs.vector_multiply_adds * self._lanes_of_sums(a.dtype)
        if rate <= plain:
            return False
        saved = typical(a.shape[-2]) * (1 / plain - 1 / rate)
        return isinstance(old.args[1], Constant) or saved > 2 * costs.move / lanes

    def _transpose(self, old: Call) -> Expr | None:
        """Converts a channels-last image directly to blocks if a convolution reads it in blocks."""
        if tuple(old.attrs.axes) != _FROM_CHANNELS_LAST or _is_blocked(self.memo[old.args[0].id]):
            return None
        channels, lanes = old.tensor.shape[1], self._lanes(old)
        if not isinstance(channels, int) or channels % lanes or not self._meets_convolution(old):
            return None
        block = self._block(channels, lanes)
        if not block:
            return None
        return get_op("layout_transform")(
            self.memo[old.args[0].id], src_layout=_CHANNELS_LAST, dst_layout=f"{_PLAIN}{block}c"
        )

    def _channels_last(self, old: Call) -> Expr | None:
        """Returns the call over a plain image with its channels last, if its operator wants it."""
        assert isinstance(old.op, Op)
        positions = old.op.traits.channels_last
        if positions is None or old.attrs.layout != _PLAIN:
            return None
        assert old.op.layout_rule is not None
        types = [a.tensor for a in old.args]
        found = old.op.layout_rule(old.attrs, types, _CHANNELS_LAST)
        if found is None:
            return None
        batch, _, *size = map(typical, types[0].shape)
        if positions(old.attrs, types) < math.prod((batch, *size)):
            self._ctx.remark(old, "image stays plain: fewer positions are read than it has")
            return None
        image, *others = (self._to(self.memo[a.id], _PLAIN, a, old) for a in old.args)
        turned = self._turned.get(image.id)
        if turned is None:
            turned = get_op("transpose")(image, axes=_TO_CHANNELS_LAST)
            self._turned[image.id] = turned
        return get_op("transpose")(
            Call(old.op, [turned, *others], found[1]), axes=_FROM_CHANNELS_LAST
        )

    def _meets_convolution(self, old: Expr) -> bool:
        """Whether a convolution reads an image, directly or through elementwise operators."""
        return self._reaches(old, _packs_weight)

    def _reaches(self, old: Expr, wanted: Callable[[Call], bool]) -> bool:
        """Whether a call that satisfies `wanted` reads an image, directly or through elementwise
        operators.
        """
        seen = {old.id}
        pending = [old]
        while pending:
            for user in self._users.get(pending.pop().id, ()):
                if not isinstance(user, Call) or user.id in seen:
                    continue
                seen.add(user.id)
                if wanted(user):
                    return True
                pointwise = self._ctx.kind(user) in _POINTWISE
                if pointwise and user.tensor.shape == old.tensor.shape:
                    pending.append(user)
        return False

    # --- operators that follow the layout of their operands ---

    def _layout_of_args(self, old: Call) -> str:
        """Returns the layout of the first blocked image among the arguments, or "" if there is
        none.
        """
        layouts = [self.memo[a.id].type for a in old.args]
        return next((t.layout for t in layouts if isinstance(t, TensorType) and t.layout), "")

    def _by_rule(self, old: Call, layout: str) -> Expr | None:
        assert isinstance(old.op, Op)
        assert old.op.layout_rule is not None
        types = [_with_filled(self.memo[a.id], a.tensor) for a in old.args]
        found = old.op.layout_rule(old.attrs, types, layout)
        if found is None:
            return None
        layouts, attrs, _ = found
        args = [
            self._to(self.memo[a.id], wanted, a, old)
            for a, wanted in zip(old.args, layouts, strict=True)
        ]
        return Call(old.op, args, attrs)

    def _concatenate(self, old: Call) -> Expr | None:
        """Uses the smallest block among the operands if all of them have whole blocks."""
        values = [self.memo[a.id] for a in old.args]
        blocked = [v for v in values if _is_blocked(v)]
        if old.tensor.rank != 4 or 2 * len(blocked) < len(values):
            return None
        channels = [a.tensor.shape[1] for a in old.args]
        if not all(isinstance(c, int) for c in channels):
            return None
        smallest = min(_block_of(v.tensor) for v in blocked)
        block = self._block(math.gcd(*channels), smallest)  # type: ignore[arg-type]
        if not block:
            return None
        layout = f"NCHW{block}c"
        args = [self._to(v, layout, a, old) for a, v in zip(old.args, values, strict=True)]
        return Call(old.op, args, old.attrs.with_(axis=old.attrs.axis % 4))

    def _pad(self, old: Call, layout: str) -> Expr | None:
        pads = old.attrs.pads
        if old.tensor.rank != 4 or pads[1] != 0 or pads[5] != 0:
            return None
        args = [self._to(self.memo[a.id], layout, a, old) for a in old.args]
        return Call(old.op, args, old.attrs.with_(pads=(*pads[:4], 0, *pads[4:], 0)))

    def _pointwise(self, old: Call) -> Expr | None:
        """Elementwise operators work in any layout; broadcast operands are reshaped to it. An image
        of one channel that is broadcast is converted to the plain layout, since the other channels
        of its block are zeros.
        """
        if old.tensor.rank != 4:
            return None
        channels = old.tensor.shape[1]
        blocked = (a for a in old.args if _is_blocked(self.memo[a.id]))
        whole = next((a for a in blocked if a.tensor.shape[1] == channels), None)
        if whole is None:
            return None
        layout = _layout_of(self.memo[whole.id])
        return Call(old.op, [self._operand(a, layout, channels, old) for a in old.args], old.attrs)

    def _operand(self, arg: Expr, layout: str, channels: Dim, user: Call) -> Expr:
        value, shape = self.memo[arg.id], arg.tensor.shape
        if _is_blocked(value) and shape[1] == channels:
            return self._to(value, layout, arg, user)
        value = self._to(value, _PLAIN, arg, user)
        if all(d == 1 for d in shape):
            return value
        shape = (1,) * (4 - len(shape)) + shape
        if shape != arg.tensor.shape:
            with self.covers(arg, user):
                value = get_op("reshape")(value, shape=shape)
        if shape[1] == channels:
            return self._to(value, layout, arg, user)
        with self.covers(arg, user):
            return get_op("reshape")(value, shape=(*shape, 1))

    # --- conversions ---

    def _to(self, value: Expr, layout: str, old: Expr, user: Expr) -> Expr:
        """Returns a value (`old` in the previous stage) in a layout for `user`."""
        if not isinstance(value.type, TensorType):
            return value
        have = value.type.layout or _PLAIN
        if have == layout or (layout == _PLAIN and not value.type.layout):
            return value
        found = self._converted.get((value.id, layout))
        if found is None:
            with self.covers(old, user):
                found = _convert(value, have, layout, old.tensor)
            if not isinstance(value, Constant):
                wants = user.op_name if isinstance(user, Call) else type(user).__name__
                self._ctx.remark(user, f"{have} -> {layout}: required by {wants}")
            self._converted[value.id, layout] = found
            self._converted[found.id, have] = value
        return found


def _spatial_padding(padding: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the padding of lines and columns as (top, left, bottom, right), and the rest. The
    first becomes an operator; the convolution keeps the rest, which pads clips between frames.
    """
    half = len(padding) // 2
    around = (*padding[half - 2 : half], *padding[-2:])
    kept = [0] * len(padding)
    for n in range(half - 2):
        kept[n], kept[half + n] = padding[n], padding[half + n]
    return around, tuple(kept)


def _convert(value: Expr, have: str, layout: str, plain: TensorType) -> Expr:
    """Returns the value in another layout. An image of one pixel becomes plain by a reshape alone.
    `plain` is the value's type without blocks.
    """
    shape = value.tensor.shape
    if _holds_more(value.tensor, plain):
        return get_op("layout_transform")(
            value, src_layout=have, dst_layout=layout, shape=plain.shape
        )
    if layout == _PLAIN and shape[2:4] == (1, 1):
        return get_op("reshape")(value, shape=(shape[0], shape[1] * shape[4], 1, 1))
    return get_op("layout_transform")(value, src_layout=have, dst_layout=layout)


def _holds_more(type_: TensorType, plain: TensorType) -> bool:
    """Whether an image has more channels than its plain form: zeros that pad the last block."""
    if not type_.layout or plain.layout or plain.rank != 4 or type_.rank != 5:
        return False
    return type_.shape[1] * type_.shape[4] != plain.shape[1]


def _is_filled(value: Expr, old: Expr) -> bool:
    types = value.type, old.type
    return all(isinstance(t, TensorType) for t in types) and _holds_more(*types)  # type: ignore[arg-type]


def _with_filled(value: Expr, plain: TensorType) -> TensorType:
    """Returns the plain type with the number of channels that the value stores."""
    if not isinstance(value.type, TensorType) or not _holds_more(value.tensor, plain):
        return plain
    n, _, *size = plain.shape
    return plain.with_(shape=(n, value.tensor.shape[1] * value.tensor.shape[4], *size))


def _filled_up(channels: int, block: int) -> int:
    return -(-channels // block) * block


def _is_blocked(value: Expr) -> bool:
    return isinstance(value.type, TensorType) and bool(value.type.layout)


def _layout_of(value: Expr) -> str:
    return (value.type.layout if isinstance(value.type, TensorType) else "") or _PLAIN


def _block_of(type_: TensorType) -> int:
    size = type_.shape[-1]
    assert isinstance(size, int)
    return size


def _needs_blocks(conv: Call) -> bool:
    """Whether a convolution of few channels needs blocks of results, whose lanes are filters: the
    windows of a signal lie apart, and dot products of integers sum columns.
    """
    dtype = conv.args[0].tensor.dtype
    return _reads_signal(conv) or (bool(product_group(dtype)) and not is_float(dtype))


def _reads_signal(conv: Call) -> bool:
    """Whether a convolution reads an image of a single line, whose windows lie apart."""
    return all(a.tensor.shape[2] == 1 for a in conv.args[:2])


def _packs_weight(call: Call) -> bool:
    """Whether a call is a convolution that reads data and weight in blocks of channels."""
    return isinstance(call.op, Op) and call.op.traits.packs_weight
