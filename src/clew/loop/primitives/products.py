"""Primitives on sums of products: dot product instructions and matrix units."""

from __future__ import annotations

from dataclasses import replace

from clew.loop.affine import Simplifier, contains
from clew.loop.ir import Block, For, If, Nest, Stmt, Store, TileProduct, block, transform, walk
from clew.loop.primitives.common import primitive, rewrite_loops, wrap
from clew.loop.products import offset_of, plan_tiles, product_of, step_along, tile_form, zero_form
from clew.support.errors import ScheduleError


@primitive
def dot(nest: Nest, simplifier: Simplifier, *, loop: str) -> Nest:
    """Turns the innermost loop of a sum of products into a dot product in each lane around it.

    `vector j in 16: dot k in 2: s[j] += f32(a[k]) * f32(b[j, k])` is one instruction if the target
    has it, and the plain loop otherwise. A shorter loop (a peeled remainder) becomes the plain
    loop. Guards that do not depend on the loop move out of it.

    Errors: S028 if the loop is not a group of neighbors of `bf16` or 8-bit operands; S001.
    """

    def rewrite(found: For) -> Stmt:
        guards: list[If] = []
        body = found.body
        while isinstance(body, If) and not contains(body.cond, found.index):
            guards.append(body)
            body = body.body
        product = product_of(body)
        steps = []
        if product is not None:
            forms = [offset_of(x.source, x.indices, simplifier) for x in (product.a, product.b)]
            steps = [step_along(f, found.index) for f in forms]
        beside = steps == [1, 1] or found.extent == 1
        if product is None or found.extent > product.group or not beside:
            raise ScheduleError(
                "S028",
                f"loop {loop} over {found.extent} is not a step of a dot product",
                hint="split the reduction by 2 (bf16) or 4 (8 bits), operands contiguous along it",
            )
        return wrap([], guards, For(found.index, "dot", body))

    return rewrite_loops(nest, loop, rewrite)


@primitive
def tensorize(
    nest: Nest,
    simplifier: Simplifier,
    *,
    stage: str,
    rows: str,
    columns: str,
    depth: str,
    within: str = "",
) -> Nest:
    """Computes a stage in an inner loop with a matrix unit: its zeros and sum become
    `tiles rows x columns x depth`, which is plain loops if the target has no such unit.

    With `within`, a loop of zeros and sum, each of its iterations sets or accumulates a separate
    product of tiles, which starts from the sums in memory.

    Errors: S001; S002 if the stage has no zeros and sum next to each other; S029 if they are not a
    product of tiles, or one of too many.
    """
    if within:

        def rewrite(loop: For) -> Stmt:
            product = TileProduct(rows, columns, depth, loop.body)
            if zero_form(product, simplifier) is None:
                plan_tiles(tile_form(product, simplifier))
            return replace(loop, body=product)

        return rewrite_loops(nest, within, rewrite)
    found = False

    def visit(node: Stmt) -> Stmt | None:
        nonlocal found
        if not isinstance(node, Block):
            return None
        stmts: list[Stmt] = []
        pending = list(node.stmts)
        while pending:
            stmt = pending.pop(0)
            if pending and _only(stmt, stage) and _only(pending[0], stage):
                product = TileProduct(rows, columns, depth, block(stmt, pending.pop(0)))
                plan_tiles(tile_form(product, simplifier))
                stmt, found = product, True
            stmts.append(stmt)
        return block(*stmts)

    body = transform(nest.body, visit)
    if not found:
        raise ScheduleError(
            "S002",
            f"stage {stage!r} of {nest.name} has no adjacent zeros and sum",
            hint="compute_at it in scratch first",
        )
    return nest.with_body(body)


def _only(stmt: Stmt, stage: str) -> bool:
    """Whether a statement is one of a stage's nests."""
    nodes = list(walk(stmt))
    stages = {s.stage for s in nodes if isinstance(s, Store)}
    return stages == {stage} and not any(isinstance(s, (Block, TileProduct)) for s in nodes)
