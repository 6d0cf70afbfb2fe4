"""Times matching, rewriting and partitioning of long graphs: how time grows, and the cost per node.

    python benchmarks/patterns.py --lengths 1000,10000

The graph is a chain of activations, biases and residual sums; the twenty rules are clew's own.
"""

import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.table import Table

from clew.ir.expr import Constant, Expr, Function, Tuple, Var
from clew.ir.types import TensorType
from clew.ops.registry import get_op
from clew.passes.simplify.canonical_blocks import BLOCK_RULES
from clew.passes.simplify.simplify_rules import RULES
from clew.patterns import RuleRewriter, dominates, find_all, is_constant, is_op, partition, wildcard
from harness.report import console

TWENTY = (*BLOCK_RULES, *RULES)[:20]
GATED = is_op("multiply")(wildcard() + is_constant(), is_op("sigmoid")(wildcard()))
DIAMOND = dominates(
    is_op("add")(wildcard(), is_constant()),
    is_op("sigmoid").any_args(),
    is_op("multiply").any_args(),
)


def graph(length: int) -> Function:
    """Returns a function of about `length` calls."""
    kind = TensorType((1, 64), "f32")
    x = Var("x", kind)
    bias = Constant(np.linspace(-1, 1, 64, dtype=np.float32))
    y: Expr = x
    for _ in range(length // 5):
        z = get_op("add")(y, bias)
        z = get_op("multiply")(z, get_op("sigmoid")(z))
        y = get_op("add")(get_op("nn.relu")(z), y)
    return Function([x], Tuple([y]), {"outputs": ("y",)})


def rewritten(function: Function) -> tuple[int, int]:
    """Returns the number of nodes tried with twenty rules, and the number of steps."""
    rewriter = RuleRewriter(TWENTY)
    rewriter.rewrite_function(function)
    return rewriter.visits, rewriter.steps


WORK: dict[str, Callable[[Function], object]] = {
    "20 rules": rewritten,
    "find_all": lambda function: find_all(GATED, function),
    "find_all, dominators": lambda function: find_all(DIAMOND, function),
    "partition": lambda function: partition(function, GATED, "gated"),
}


def main(
    lengths: Annotated[str, typer.Option(help="Calls in the graph.")] = "1000,10000",
    rounds: Annotated[int, typer.Option(help="Turns of each.", min=1)] = 5,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Also write the figures to this file.")
    ] = None,
) -> None:
    """Prints median milliseconds, microseconds per node, and the matcher's steps per node."""
    table = Table(title="patterns, medians", title_justify="left")
    for header in ("work", "nodes", "ms", "µs per node", "steps per node"):
        table.add_column(header, justify="left" if header == "work" else "right")
    rows = []
    for length in (int(word) for word in lengths.split(",")):
        function = graph(length)
        for name, work in WORK.items():
            spans = []
            for _ in range(rounds):
                start = time.perf_counter()
                result = work(function)
                spans.append(time.perf_counter() - start)
            median = statistics.median(spans)
            steps = result[1] / length if isinstance(result, tuple) else None
            shown = "" if steps is None else f"{steps:.1f}"
            cost = f"{median / length * 1e6:.1f}"
            table.add_row(name, str(length), f"{median * 1e3:.1f}", cost, shown)
            rows.append({"work": name, "nodes": length, "median_s": median, "steps": steps})
    console.print(table)
    if json_file:
        json_file.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
