"""Dataflow patterns: a small language to describe subgraphs, a matcher, rewriting and partitioning.

```python
x, bias = wildcard(), is_constant()
conv = is_op("nn.conv2d")(x, wildcard()).has_attr(groups=1)
pattern = is_op("nn.relu")(conv + bias)
found = match(pattern, expr)  # None, or a mapping from patterns to nodes
print(explain(pattern, expr))  # the match, or where and why it fails
```
"""

from clew.patterns.composites import partition
from clew.patterns.explain import explain
from clew.patterns.explanation import Explanation
from clew.patterns.found import Match
from clew.patterns.language import (
    dominates,
    has_attr,
    has_dtype,
    has_kind,
    has_shape,
    has_type,
    is_call,
    is_composite,
    is_constant,
    is_expr,
    is_function,
    is_if,
    is_op,
    is_splat,
    is_tuple,
    is_tuple_get_item,
    is_var,
    wildcard,
)
from clew.patterns.match import find_all, match
from clew.patterns.pattern import Pattern
from clew.patterns.reader import read_pattern
from clew.patterns.rules import Rewrite, Rule, RuleRewriter, rewrite, rule, unfired

__all__ = [
    "Explanation",
    "Match",
    "Pattern",
    "Rewrite",
    "Rule",
    "RuleRewriter",
    "dominates",
    "explain",
    "find_all",
    "has_attr",
    "has_dtype",
    "has_kind",
    "has_shape",
    "has_type",
    "is_call",
    "is_composite",
    "is_constant",
    "is_expr",
    "is_function",
    "is_if",
    "is_op",
    "is_splat",
    "is_tuple",
    "is_tuple_get_item",
    "is_var",
    "match",
    "partition",
    "read_pattern",
    "rewrite",
    "rule",
    "unfired",
    "wildcard",
]
