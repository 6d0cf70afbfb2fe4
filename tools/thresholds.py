"""Fails if a pass, a rule or a cost model has a threshold of its own.

    python tools/thresholds.py

What something is chosen by stands in `clew.cost.policy`, with its unit and its reason. Elsewhere in
`FOLDERS`, these are violations: a constant of a module or the default of a field that is a number
or a collection with numbers, and a number above `_SMALL`, or a fraction, that something is compared
with. Numbers that choose nothing have an exception here, with its reason.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
SOURCE: Final = ROOT / "src" / "clew"
FOLDERS: Final = ("passes", "schedules", "cost", "backends/cpu")
POLICY: Final = "cost/policy/"
_SMALL: Final = 16
_LEVELS: Final = ("opt_level",)
"""Fields of passes that are levels everywhere."""
_NEUTRAL: Final = ("0", "1", "-1", "0.0", "1.0")
"""Defaults of fields that are where a count or a factor starts."""
_SUMS: Final = (ast.UnaryOp, ast.BinOp)
_COLLECTIONS: Final = (ast.Tuple, ast.List, ast.Set, ast.Dict)
_ORDERS: Final = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)

_FORMAT: Final = "a format"
_TEXT: Final = "the length of a text"
_WORK: Final = "bounds the compiler's own work"
_MEMORY: Final = "bounds the memory of a run"
EXCEPTIONS: Final = {
    ("backends/cpu/kernel_workers.py", "_MOST_AT_START"): _WORK,
    ("backends/cpu/kernel_workers.py", "_MOST_WORKERS"): _WORK,
    ("passes/convolution/alter_layout.py", "_FROM_CHANNELS_LAST"): _FORMAT,
    ("passes/convolution/alter_layout.py", "_TO_CHANNELS_LAST"): _FORMAT,
    ("passes/convolution/channels_first.py", "_RANKS"): _FORMAT,
    ("passes/convolution/conv_in_parts.py", "_BLOCK"): _FORMAT,
    ("passes/convolution/flatten_clips.py", "_RANK"): _FORMAT,
    ("passes/convolution/flatten_clips.py", "_SWAPPED"): _FORMAT,
    ("passes/convolution/forms.py", "CHANNELS"): _FORMAT,
    ("passes/convolution/lift_signals.py", "_LINES"): _FORMAT,
    ("passes/convolution/lift_signals.py", "_RANK"): _FORMAT,
    ("passes/convolution/select_conv_algorithm.py", "parts"): "the precision of f32",
    ("passes/convolution/transform_frames.py", "_LEAST"): "the precision of f32",
    ("passes/convolution/transform_frames.py", "_ULPS"): "the precision of f32",
    ("passes/convolution/winograd.py", "_ROUNDINGS"): "counted in the algorithm",
    ("passes/fusion/fuse_regions.py", "_SHOWN"): _TEXT,
    ("passes/fusion/fuse_regions.py", "_UNBOUNDED"): "no limit",
    ("passes/fusion/fusion_groups.py", "_MAX_NAMED"): _TEXT,
    ("passes/fusion/melt_attention.py", "_HIDDEN"): "the meaning of a mask",
    ("passes/fusion/melt_attention.py", "_HIDDEN_BY_DTYPE"): "the meaning of a mask",
    ("passes/fusion/melt_attention.py", "_LARGEST_MASK"): _WORK,
    ("passes/fusion/melt_attention.py", "_MOST_MASKS"): _WORK,
    ("passes/fusion/melt_attention.py", "_RANKS"): _FORMAT,
    ("passes/fusion/melted_convolutions.py", "_RANK"): _FORMAT,
    ("passes/integer_bounds.py", "_MOST_ELEMENTS"): _WORK,
    ("passes/name_values.py", "_MOST_VALUES"): _TEXT,
    ("passes/narrow_caches.py", "_LARGEST"): "what 8 bits hold",
    ("passes/narrow_caches.py", "_LEAST"): "a number that is not 0",
    ("passes/placement/partition_graph.py", "_MOST_NAMED"): _TEXT,
    ("passes/placement/refusals.py", "_SHOWN"): _TEXT,
    ("passes/precision/bound_sums.py", "_MOST"): "what 32 bits hold",
    ("passes/precision/fold_offsets.py", "_FRACTION"): _FORMAT,
    ("passes/precision/fold_offsets.py", "_MOST"): "what 32 bits hold",
    ("passes/precision/fold_offsets.py", "_MOST_OFFSET"): "what 64 bits hold",
    ("passes/precision/fold_offsets.py", "_MOST_TOTAL"): "what 64 bits hold",
    ("passes/precision/integer_operands.py", "HALF"): _FORMAT,
    ("passes/precision/integer_operands.py", "_MOST_DEPTH"): "what 32 bits hold",
    ("passes/precision/integer_operands.py", "_MOST_ZERO"): _FORMAT,
    ("passes/precision/requantize_sums.py", "_MOST_BIAS"): "what 32 bits hold",
    ("passes/precision/requantize_sums.py", "_ROUNDING"): "rounding of f32",
    ("passes/precision/split_products.py", "_AT_ONCE"): _WORK,
    ("passes/precision/split_products.py", "parts"): "the precision of f32",
    ("passes/precision/tabulate.py", "_ENTRIES"): _FORMAT,
    ("passes/reproducers.py", "_MOST"): "folders that are kept",
    ("passes/simplify/canonical_blocks.py", "_DIGITS"): "rounding of each dtype",
    ("passes/simplify/fold_constant.py", "_FREE_OPERATIONS"): _WORK,
    ("passes/simplify/fold_constant.py", "_LINEAR"): _WORK,
    ("passes/simplify/unroll_loops.py", "most"): _WORK,
    ("schedules/rules/attention.py", "_PAIR"): _FORMAT,
    ("schedules/rules/conv.py", "_BY_BLOCKS"): "a setting",
    ("schedules/rules/conv.py", "_BY_PIXELS"): "a setting",
    ("schedules/rules/elementwise.py", "_LINES_APART"): _FORMAT,
    ("schedules/rules/split_weights.py", "_PAIR_BYTES"): _FORMAT,
    ("schedules/space.py", "_FEW"): "bounds a search",
    ("schedules/space.py", "_WORDS"): "the values of words",
    ("cost/convolution.py", "WINDOW"): "given by the algorithm",
    ("cost/convolution.py", "WINOGRAD_TILES"): "given by the algorithm",
    ("cost/convolution.py", "_MOVES_OF_CONVERSION"): "counted in the algorithm",
    ("cost/convolution.py", "_MOVES_OF_SUM"): "counted in the algorithm",
    ("cost/convolution.py", "_PART_BYTES"): _FORMAT,
    ("cost/convolution.py", "_TRANSFORM_STEPS"): "counted in the algorithm",
    ("cost/work.py", "_FUNCTION_FLOPS"): "a count of operations",
    ("backends/cpu/deferred_kernel.py", "_KEPT_SHAPES"): _MEMORY,
    ("backends/cpu/deferred_kernel.py", "_NOTED_SHAPES"): _MEMORY,
    ("backends/cpu/history.py", "_MOST_TRIED"): _WORK,
    ("backends/cpu/native.py", "_LAYERS_SHOWN"): _TEXT,
    ("backends/cpu/one_row.py", "_LARGEST"): _WORK,
    ("backends/cpu/flow_writer.py", "COUNTER_BYTES"): _FORMAT,
}
"""Numbers that choose nothing, by file and name, each with what it is instead."""


def complaints(file: str, text: str) -> Iterator[tuple[int, str]]:
    """Yields the line and the name, or the source, of each threshold of a module."""
    nodes = list(ast.walk(ast.parse(text)))
    for node in nodes:
        if isinstance(node, (ast.Module, ast.ClassDef)):
            for line, name, value in _assigned(node.body):
                default = isinstance(node, ast.ClassDef) and ast.unparse(value) in _NEUTRAL
                excepted = (file, name) in EXCEPTIONS or name in _LEVELS
                if _has_number(value) and not default and not excepted:
                    yield line, name
        elif isinstance(node, ast.Compare) and _is_large(node):
            yield node.lineno, ast.unparse(node)


def _assigned(body: Iterable[ast.stmt]) -> Iterator[tuple[int, str, ast.expr]]:
    """Yields what statements define: the line, the name and the value."""
    for node in body:
        if isinstance(node, ast.AnnAssign) and node.value is not None:
            yield node.lineno, ast.unparse(node.target), node.value
        elif isinstance(node, ast.Assign):
            yield node.lineno, ast.unparse(node.targets[0]), node.value


def _has_number(value: ast.expr) -> bool:
    """Whether a value is made of numbers; those in calls and subscripts have another meaning."""
    if isinstance(value, ast.Constant):
        return _number(value) is not None
    return isinstance(value, (*_SUMS, *_COLLECTIONS)) and any(map(_has_number, _parts(value)))


def _is_large(node: ast.Compare) -> bool:
    """Whether something is compared with a number that is large, or a fraction."""
    sides = (node.left, *node.comparators)
    return any(isinstance(o, _ORDERS) for o in node.ops) and any(map(_has_large, sides))


def _has_large(value: ast.expr) -> bool:
    number = _number(value)
    if number is not None:
        return abs(number) > _SMALL or not number.is_integer()
    return isinstance(value, _SUMS) and any(map(_has_large, _parts(value)))


def _parts(value: ast.expr) -> Iterator[ast.expr]:
    return (node for node in ast.iter_child_nodes(value) if isinstance(node, ast.expr))


def _number(value: ast.expr) -> float | None:
    """Returns the value of a number, or of one that is shifted; None for anything else."""
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.LShift):
        left, right = _number(value.left), _number(value.right)
        return None if left is None or right is None else left * 2**right
    known = value.value if isinstance(value, ast.Constant) else None
    return float(known) if isinstance(known, (int, float)) and known is not bool(known) else None


def main() -> int:
    """Prints the violations, and returns 1 if there are any."""
    wrong = 0
    for folder in FOLDERS:
        for path in sorted((SOURCE / folder).rglob("*.py")):
            file = path.relative_to(SOURCE).as_posix()
            if file.startswith(POLICY):
                continue
            for line, what in complaints(file, path.read_text(encoding="utf-8")):
                wrong += 1
                print(f"src/clew/{file}:{line}: {what} is a threshold")
    if wrong:
        print(f"{wrong} thresholds: move them to clew.cost.policy, or name them in {__file__}")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
