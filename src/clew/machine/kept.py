"""Costs and rates measured by `clew machine`, stored in a file for later processes.

The file is `machine.json` in the cache folder. Several machines may share the folder, so it has two
tables for each machine: its costs, and the rates of its cores.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from clew.machine.costs import DEFAULTS, Costs
from clew.support.errors import ClewError, ClewWarning, InputError, warn
from clew.support.files import read_json_file, reason_of
from clew.support.folders import make_private
from clew.support.settings import settings
from clew.support.writing import write_text

if TYPE_CHECKING:  # a start from the cache needs costs alone
    from clew.machine.rates import Rates

_RATES: Final = "rates of "


def costs_file() -> Path:
    """Returns the path of the file of measured costs, which need not exist."""
    return settings().cache_dir / "machine.json"


def is_kept(identity: str) -> bool:
    """Whether costs of this machine are stored."""
    return identity in _tables()


def kept_costs(identity: str) -> Costs:
    """Returns the costs of a machine: the stored ones, or the defaults.

    A damaged file causes a warning (I292) and gives the defaults.
    """
    table = _tables().get(identity)
    if table is None:
        return DEFAULTS
    try:
        if not isinstance(table, Mapping):
            raise InputError("I290", "the table is not an object")
        return Costs.of_record(table)
    except InputError as error:
        _damaged(error)
        return DEFAULTS


def kept_rates(identity: str) -> Rates | None:
    """Returns the stored rates of a machine; None if there are none.

    A damaged file causes a warning (I292) and counts as none.
    """
    from clew.machine.rates import Rates  # noqa: PLC0415

    table = _tables().get(_RATES + identity)
    if table is None:
        return None
    try:
        if not isinstance(table, Mapping):
            raise InputError("I290", "the table is not an object")
        return Rates.of_record(table)
    except InputError as error:
        _damaged(error)
        return None


def keep(identity: str, costs: Costs) -> Path:
    """Stores the costs of a machine; returns the file.

    Errors: I291 if the file cannot be written.
    """
    return _write({**_tables(), identity: costs.to_record()})


def keep_rates(identity: str, rates: Rates) -> Path:
    """Stores the rates of a machine's cores; returns the file.

    Errors: I291 if the file cannot be written.
    """
    return _write({**_tables(), _RATES + identity: rates.to_record()})


def forget(identity: str) -> bool:
    """Deletes the stored costs and rates of a machine; returns whether there were any.

    Errors: I291 if the file cannot be written.
    """
    tables = _tables()
    gone = tables.keys() & {identity, _RATES + identity}
    if gone:
        _write({name: table for name, table in tables.items() if name not in gone})
    return bool(gone)


def _tables() -> dict[str, Any]:
    file = costs_file()
    try:
        found = read_json_file(file)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, ClewError) as error:
        _damaged(error)
        return {}
    if not isinstance(found, dict):
        _damaged(ValueError("it is not a JSON object"))
        return {}
    return found


def _damaged(error: Exception) -> None:
    warn(
        ClewWarning(
            "I292",
            f"{costs_file()} does not contain costs and rates: {reason_of(error)}",
            hint="the defaults are used; clew machine --again measures them",
        )
    )


def _write(tables: Mapping[str, Any]) -> Path:
    file = costs_file()
    try:
        make_private(file.parent)
        write_text(file, json.dumps(tables, indent=1) + "\n", mode=0o600)
    except OSError as error:
        raise InputError(
            "I291",
            f"cannot write to {file}: {reason_of(error)}",
            hint="set CLEW_CACHE_DIR to a folder you may write to",
        ) from error
    return file
