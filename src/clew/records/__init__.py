"""Tuning records: the choices tried for a kernel on a machine, and their times.

`trial.py` defines a record, `store.py` keeps records in an SQLite file, and `exchange.py` writes
them as JSON lines. Only `tuning` makes records; `compile` reads the best of them.
"""

from clew.records.store import Store, default_path
from clew.records.trial import Trial

__all__ = ["Store", "Trial", "default_path"]
