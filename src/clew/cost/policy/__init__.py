"""The thresholds by which passes, rules and backends choose: the only table of them in clew.

Each module holds those of one subject, as plain numbers or tuples:

```python
from clew.cost.policy.layouts import ROWS_TO_PACK
```

`clew.cost.policy.table.thresholds()` lists all of them with their units, their reasons, and the
CPUs on which they were measured. `docs/policy.md` is that list.

What work costs on a machine is in `clew.machine.costs`; a threshold is the same on all machines.
Limits of safety and of the compiler's own work are no thresholds: `tools/thresholds.py` names them.
"""
