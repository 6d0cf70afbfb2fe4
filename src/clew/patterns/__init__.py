"""Dataflow patterns: a small language to describe subgraphs, a matcher, and a rule rewriter.

```python
x, bias = wildcard(), is_constant()
conv = is_op("nn.conv2d")(x, wildcard()).has_attr(groups=1)
pattern = is_op("nn.relu")(is_op("add")(conv, bias))
found = match(pattern, expr)  # None, or a mapping from patterns to nodes
```
"""

from clew.patterns.match import Match, find_all, match
from clew.patterns.pattern import (
    Pattern,
    is_call,
    is_constant,
    is_op,
    is_splat,
    is_tuple_get_item,
    is_var,
    wildcard,
)
from clew.patterns.rules import Rule, RuleRewriter, rule

__all__ = [
    "Match",
    "Pattern",
    "Rule",
    "RuleRewriter",
    "find_all",
    "is_call",
    "is_constant",
    "is_op",
    "is_splat",
    "is_tuple_get_item",
    "is_var",
    "match",
    "rule",
    "wildcard",
]
