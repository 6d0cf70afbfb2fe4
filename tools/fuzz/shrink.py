"""Makes a case that fails small: hypothesis starts from the seed's own choices."""

from __future__ import annotations

import os
import signal
import time
from typing import Final

from hypothesis import HealthCheck, Phase, find, settings
from hypothesis.database import InMemoryExampleDatabase, choices_to_bytes
from hypothesis.errors import NoSuchExample

from fuzz.case import Case, cases
from fuzz.check import Outcome, check

_KEY: Final = b"fuzz"
_LIMIT_S: Final = 20.0


def shrunk(case: Case, outcome: Outcome, seconds: float = 40.0, forked: bool = False) -> Case:
    """Returns the smallest case found in some seconds that fails in the same way.

    `forked` tries each in its own process, for failures that crash or hang.
    """
    database = InMemoryExampleDatabase()
    # Hypothesis considers everything stored under the key itself as small already.
    database.save(_KEY + b".secondary", choices_to_bytes(tuple(case.made)))
    until = time.monotonic() + seconds

    def fails(other: Case) -> bool:
        if time.monotonic() > until:
            return False
        found = died(other) if forked else check(other)
        if found.failed and found.is_like(outcome):
            best[0] = other
            return True
        return False

    best = [case]
    wanted = settings(
        database=database, phases=[Phase.reuse, Phase.shrink], max_examples=100_000, deadline=None,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    try:
        find(cases(), fails, settings=wanted, database_key=_KEY)
    except NoSuchExample:
        pass
    except Exception as error:  # hypothesis calls it flaky when the time is over
        if not best[0].made and type(error).__module__.split(".")[0] != "hypothesis":
            raise
    best[0].seed = case.seed
    return best[0]


def died(case: Case) -> Outcome:
    """Checks a case in a child; a child that dies or hangs is the outcome."""
    child = os.fork()
    if not child:
        signal.alarm(int(_LIMIT_S))
        os._exit(1 if check(case).failed else 0)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return Outcome("hang" if number == signal.SIGALRM else "crash", signal.Signals(number).name)
    return Outcome("mismatch" if os.WEXITSTATUS(status) else "ok")
