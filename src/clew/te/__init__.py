"""Tensor expressions: definitions of each element of a result.

```python
k = te.reduce_axis(K, "k")
c = te.compute((M, N), lambda i, j: te.sum(a[i, k] * b[k, j], k), "matmul")
```
"""

from clew.te.exponents import to_exponent
from clew.te.expr import (
    Bitcast,
    Checked,
    Scalar,
    all_of,
    as_scalar,
    cast,
    maximum,
    minimum,
    select,
)
from clew.te.sequential import collect, follow, greedy, scan, scatter, sort
from clew.te.tensor import (
    Tensor,
    call,
    compute,
    max,
    min,
    placeholder,
    power,
    prod,
    reduce,
    reduce_axis,
    size,
    sum,
)

__all__ = [
    "Bitcast",
    "Checked",
    "Scalar",
    "Tensor",
    "all_of",
    "as_scalar",
    "call",
    "cast",
    "collect",
    "compute",
    "follow",
    "greedy",
    "max",
    "maximum",
    "min",
    "minimum",
    "placeholder",
    "power",
    "prod",
    "reduce",
    "reduce_axis",
    "scan",
    "scatter",
    "select",
    "size",
    "sort",
    "sum",
    "to_exponent",
]
