"""Opens SQLite files named by the user."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Final
from urllib.parse import quote

from clew.support.files import check_regular

_WAIT_S: Final = 30.0  # for other writers
_MOST_BYTES: Final = 1 << 24  # of one value or row


def memory_database() -> sqlite3.Connection:
    """Returns a connection to a new, empty database in memory, as from `open_database`."""
    return sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)


def open_database(path: Path, *, write: bool) -> sqlite3.Connection:
    """Returns a connection to an SQLite file; with `write`, the file is created if it is absent.

    Only regular files are opened. Each statement is a transaction of its own unless one is begun.
    A writer switches the file to write-ahead logging, so that readers and one writer do not wait
    for each other; other writers wait up to half a minute. The last connection to close deletes the
    log and its index, also if it only reads.

    Errors: OSError, whose `strerror` says why; sqlite3.Error if it is not a database.
    """
    if os.path.exists(path) or not write:
        check_regular(os.stat(path))
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
    name = quote(os.fspath(path.absolute()))
    # With mode=ro, the log and its index would stay behind. Write-protected files can be read, too.
    for options in ("mode=rwc",) if write else ("mode=rw", "immutable=1"):
        made = sqlite3.connect(
            f"file:{name}?{options}",
            uri=True,
            timeout=_WAIT_S,
            isolation_level=None,
            check_same_thread=False,
        )
        try:
            made.execute("PRAGMA trusted_schema=OFF")
            made.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MOST_BYTES)
            if write:
                made.execute("PRAGMA journal_mode=WAL")
                made.execute("PRAGMA synchronous=NORMAL")
            else:
                made.execute("PRAGMA query_only=ON")
            made.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        except sqlite3.OperationalError as error:
            # A reader of a folder it may not write to cannot share the index of the log.
            made.close()
            if write or options == "immutable=1" or "open" not in str(error):
                raise
        except sqlite3.Error:
            made.close()
            raise
        else:
            return made
    raise AssertionError("the last way to open it returns or raises")
