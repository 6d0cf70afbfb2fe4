"""Records in an SQLite file. Several processes may read and write it at once."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Final, TypeVar

from clew.records.processes import is_running, this_process
from clew.records.trial import KERNEL, RUNNING, Trial
from clew.support.databases import memory_database, open_database
from clew.support.dataclass import dataclass
from clew.support.errors import Hint, InputError
from clew.support.files import json_of, reason_of
from clew.support.settings import settings
from clew.support.shown import Shown

_APPLICATION: Final = 0x636C6577  # "clew"
_FORMAT: Final = 1
_COLUMNS: Final = tuple(one.name for one in fields(Trial))
_TYPES: Final = {"int": "INTEGER", "float": "REAL", "bool": "INTEGER", "str": "TEXT"}
_SCHEMA: Final = f"""
CREATE TABLE trials (
  {", ".join(
      f"{one.name} {_TYPES[str(one.type).split(' ')[0]]}"
      + ("" if "None" in str(one.type) else " NOT NULL")
      for one in fields(Trial)
  )},
  process TEXT NOT NULL DEFAULT '',
  PRIMARY KEY (uid)
) STRICT, WITHOUT ROWID;
CREATE INDEX by_subject ON trials (machine, threads, kind, subject);
CREATE TABLE uses (
  kind TEXT NOT NULL, subject TEXT NOT NULL, model TEXT NOT NULL, kernel TEXT NOT NULL,
  layers TEXT NOT NULL, choices TEXT NOT NULL,
  PRIMARY KEY (kind, subject, model, kernel)
) STRICT, WITHOUT ROWID;
CREATE TABLE sessions (
  uid TEXT NOT NULL PRIMARY KEY, model TEXT NOT NULL, machine TEXT NOT NULL,
  threads INTEGER NOT NULL, began REAL NOT NULL, seconds REAL NOT NULL, trials INTEGER NOT NULL,
  before_ns REAL, after_ns REAL
) STRICT, WITHOUT ROWID;
"""  # fmt: skip
_OWN: Final = sorted(" ".join(statement.split()) for statement in _SCHEMA.split(";\n") if statement)
_MOST_ROWS: Final = 1_000_000
_T = TypeVar("_T")


@dataclass(frozen=True)
class Use:
    """A use of a kernel, or of a decision of the graph, in a model: the name of the kernel use, its
    layers, and the choices made without records.
    """

    kind: str
    subject: str
    model: str
    kernel: str
    layers: tuple[str, ...]
    choices: str


@dataclass(frozen=True)
class SessionRecord:
    """A session of tuning: seconds since 1970 when it began, its length, its number of trials, and
    nanoseconds of a call without records and with the best ones, measured in turns at its end.
    """

    uid: str
    model: str
    machine: str
    threads: int
    began: float
    seconds: float
    trials: int
    before_ns: float | None = None
    after_ns: float | None = None


def default_path() -> Path:
    """Returns the file that `compile` and `tune` use by default (`CLEW_TUNING`)."""
    return settings().tuning


class Store(Shown):
    """The records in a file.

    Every method is a transaction. Writers wait for each other.

    Errors (all methods): I380 if the file cannot be opened or written; I381 if it is no database of
    records, or damaged; I382 if it has a newer format.
    """

    def __init__(self, path: str | Path, *, write: bool = True) -> None:
        self.path = Path(path)
        self._connection = self._checked(lambda: self._opened(write))

    def _about(self) -> str:
        return f"in {str(self.path)!r}"

    def _opened(self, write: bool) -> sqlite3.Connection:
        made = open_database(self.path, write=write)
        try:
            if not write and not any(_facts(made)):  # an empty file is a database without records
                made.close()
                made, write = memory_database(), True
            with _transaction(made, write=write):
                owner, version, tables = _facts(made)
                if write and not (owner or version or tables):
                    for statement in _SCHEMA.split(";\n"):
                        made.execute(statement)
                    made.execute(f"PRAGMA application_id={_APPLICATION}")
                    made.execute(f"PRAGMA user_version={_FORMAT}")
                elif owner != _APPLICATION:
                    raise self._foreign("it is another program's database")
                elif version != _FORMAT:
                    raise InputError(
                        "I382",
                        f"{str(self.path)!r} has records in format {version}; this clew reads "
                        f"{_FORMAT}",
                        hint="update clew, or name another file",
                    )
                elif not self._is_own(made):
                    raise self._foreign("its tables are others than clew makes")
        except BaseException:
            made.close()
            raise
        return made

    @staticmethod
    def _is_own(connection: sqlite3.Connection) -> bool:
        """Whether a file has the tables and the index of this format, and nothing else. A view in
        place of a table could have rows without end, and a trigger could run at each write.
        """
        made = connection.execute("SELECT sql FROM sqlite_schema WHERE name NOT GLOB 'sqlite_*'")
        first = made.fetchmany(len(_OWN) + 1)
        return sorted(" ".join(str(sql).split()) for (sql,) in first) == _OWN

    def _foreign(self, why: str) -> InputError:
        return InputError(
            "I381",
            f"{str(self.path)!r} has no records of tuning: {why}",
            hint=Hint(
                "name a file that clew.tune wrote, or compile with tuned=None; move this one away "
                "if it is the default one (CLEW_TUNING)",
                cli="name a file that clew tune wrote, or give --tuned none; move this one away if "
                "it is the default one (CLEW_TUNING)",
            ),
        )

    def _checked(self, work: Callable[[], _T]) -> _T:
        try:
            return work()
        except OSError as error:
            raise self._unusable(reason_of(error)) from None
        except (sqlite3.OperationalError, sqlite3.ProgrammingError) as error:
            if "no such" in str(error):
                raise self._foreign(f"it lacks tables or columns ({error})") from None
            raise self._unusable(str(error)) from None
        except (sqlite3.Error, ValueError, OverflowError) as error:
            raise self._foreign(str(error)) from None

    def _unusable(self, why: str) -> InputError:
        return InputError(
            "I380",
            f"the records of tuning in {str(self.path)!r} cannot be used: {why}",
            hint="name a file in a folder that you may write to, on a local disk",
        )

    def close(self) -> None:
        """Closes the file."""
        self._connection.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- trials ---

    def begin(self, trial: Trial) -> None:
        """Adds a trial that this process is about to run."""
        self._write(lambda c: self._insert(c, trial, this_process()))

    def update(self, *trials: Trial) -> None:
        """Replaces records of the same `uid`. A finished trial belongs to no process."""

        def work(connection: sqlite3.Connection) -> None:
            for trial in trials:
                self._insert(connection, trial, this_process() if trial.state in RUNNING else "")

        self._write(work)

    def drop(self, uids: Iterable[str]) -> None:
        """Removes trials that were not run after all."""
        self._write(lambda c: c.executemany("DELETE FROM trials WHERE uid=?", [(u,) for u in uids]))

    def add(self, trials: Sequence[Trial], uses: Sequence[Use] = ()) -> int:
        """Adds records that are not here yet, and returns the number of new trials."""

        def work(connection: sqlite3.Connection) -> int:
            (before,) = connection.execute("SELECT count(*) FROM trials").fetchone()
            for trial in trials:
                self._insert(connection, trial, "", new=True)
            self._insert_uses(connection, uses)
            (after,) = connection.execute("SELECT count(*) FROM trials").fetchone()
            return int(after - before)

        return self._write(work)

    def settle_crashed(self) -> list[Trial]:
        """Returns the trials whose process ended while they were verified, and marks them. Trials
        that were only being measured are removed, so that they are tried again.
        """

        def work(connection: sqlite3.Connection) -> list[Trial]:
            found = connection.execute(
                f"SELECT {', '.join(_COLUMNS)}, process FROM trials WHERE state IN (?, ?)", RUNNING
            ).fetchall()
            crashed = []
            for *row, process in found:
                if is_running(process):
                    continue
                trial = _trial(row)
                if trial.state == "measuring":
                    connection.execute("DELETE FROM trials WHERE uid=?", (trial.uid,))
                else:
                    crashed.append(replace(trial, state="crashed"))
                    self._insert(connection, crashed[-1], "")
            return crashed

        return self._write(work)

    def trials(
        self,
        machine: str | None = None,
        threads: int | None = None,
        kind: str | None = None,
        subjects: Iterable[str] | None = None,
        state: str | None = None,
    ) -> list[Trial]:
        """Returns the records that meet all conditions, oldest first."""
        given = {"machine": machine, "threads": threads, "kind": kind, "state": state}
        asked = {name: value for name, value in given.items() if value is not None}
        where = " AND ".join(f"{name}=?" for name in asked) or "1"
        wanted = None if subjects is None else set(subjects)

        def work() -> list[Trial]:
            rows = self._connection.execute(
                f"SELECT {', '.join(_COLUMNS)} FROM trials WHERE {where} ORDER BY made, uid "
                f"LIMIT {_MOST_ROWS}",
                tuple(asked.values()),
            )
            made = map(_trial, rows.fetchall())
            return [t for t in made if wanted is None or t.subject in wanted]

        return self._checked(work)

    def best(self, machine: str, threads: int) -> dict[tuple[str, str], list[Trial]]:
        """Returns the records faster than the default, by kind and subject, best first."""
        found: dict[tuple[str, str], list[Trial]] = {}
        for trial in self.trials(machine, threads, state="won"):
            if trial.total_ratio is not None and trial.total_ratio < 1.0:
                found.setdefault((trial.kind, trial.subject), []).append(trial)
        for trials in found.values():
            trials.sort(key=lambda t: (t.total_ratio, not t.confirmed, t.made))
        return found

    # --- uses and sessions ---

    def note_uses(self, uses: Sequence[Use]) -> None:
        """Records which layers of which models use kernels."""
        self._write(lambda c: self._insert_uses(c, uses))

    def uses(self, model: str | None = None) -> list[Use]:
        """Returns the uses in a model, or in all."""

        def work() -> list[Use]:
            where, values = ("model=?", (model,)) if model is not None else ("1", ())
            rows = self._connection.execute(
                "SELECT kind, subject, model, kernel, layers, choices FROM uses "
                f"WHERE {where} LIMIT {_MOST_ROWS}",
                values,
            )
            return [_use(row) for row in rows.fetchall()]

        return self._checked(work)

    def note_session(self, session: SessionRecord) -> None:
        """Adds a session, or replaces the record of the same `uid`."""
        names = [one.name for one in fields(SessionRecord)]
        self._write(
            lambda c: c.execute(
                f"INSERT OR REPLACE INTO sessions ({', '.join(names)}) "
                f"VALUES ({', '.join('?' * len(names))})",
                [getattr(session, name) for name in names],
            )
        )

    def sessions(self, model: str, machine: str, threads: int) -> list[SessionRecord]:
        """Returns the sessions of a model on a machine, oldest first."""
        names = [one.name for one in fields(SessionRecord)]
        return self._checked(
            lambda: [
                SessionRecord(*row)
                for row in self._connection.execute(
                    f"SELECT {', '.join(names)} FROM sessions "
                    "WHERE model=? AND machine=? AND threads=? ORDER BY began",
                    (model, machine, threads),
                ).fetchall()
            ]
        )

    def _write(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        def done() -> _T:
            with _transaction(self._connection, write=True):
                return work(self._connection)

        return self._checked(done)

    @staticmethod
    def _insert(
        connection: sqlite3.Connection, trial: Trial, process: str, *, new: bool = False
    ) -> None:
        values = [getattr(trial, name) for name in _COLUMNS]
        connection.execute(
            f"INSERT OR {'IGNORE' if new else 'REPLACE'} INTO trials "
            f"({', '.join(_COLUMNS)}, process) VALUES ({', '.join('?' * len(_COLUMNS))}, ?)",
            [*(int(v) if isinstance(v, bool) else v for v in values), process],
        )

    @staticmethod
    def _insert_uses(connection: sqlite3.Connection, uses: Sequence[Use]) -> None:
        connection.executemany(
            "INSERT OR REPLACE INTO uses (kind, subject, model, kernel, layers, choices) "
            "VALUES (?, ?, ?, ?, ?, ?)",
            [(u.kind, u.subject, u.model, u.kernel, json.dumps(u.layers), u.choices) for u in uses],
        )


def _facts(connection: sqlite3.Connection) -> tuple[int, int, int]:
    """Returns the application and format that a database names, and its number of tables."""
    (owner,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    return owner, version, tables


@contextmanager
def _transaction(connection: sqlite3.Connection, *, write: bool) -> Iterator[None]:
    if connection.in_transaction:  # Ctrl-C has left it open
        connection.execute("ROLLBACK")
    try:
        connection.execute("BEGIN IMMEDIATE" if write else "BEGIN")
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _trial(row: Sequence[Any]) -> Trial:
    """Returns the record in a row. Errors: ValueError if it is damaged."""
    values = dict(zip(_COLUMNS, row, strict=True))
    return Trial.of_json({**values, "confirmed": bool(values["confirmed"])})


def _use(row: Sequence[Any]) -> Use:
    """Returns the use in a row. Errors: ValueError if it is damaged."""
    kind, subject, model, kernel, layers, choices = row
    names = json_of(layers.encode())
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"layers are {layers[:80]!r}")
    return Use(kind, subject, model, kernel, tuple(names), choices)


def kernel_uses(uses: Iterable[Use]) -> dict[str, list[Use]]:
    """Returns uses of kernels by the kernel's structural hash."""
    found: dict[str, list[Use]] = {}
    for use in uses:
        if use.kind == KERNEL:
            found.setdefault(use.subject, []).append(use)
    return found
