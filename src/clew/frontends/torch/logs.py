"""Captures what torch logs, so that it does not reach the user's terminal."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class KeptLogs(logging.Filter):
    """Holds back the log records of one thread, and stores them."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []
        self._thread = threading.get_ident()

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a record is passed to the handlers."""
        if threading.get_ident() != self._thread:
            return True
        self.records.append(record)
        return False

    @property
    def error(self) -> BaseException | None:
        """The error that was logged last; None if there is none."""
        logged = [r.exc_info[1] for r in self.records if isinstance(r.exc_info, tuple)]
        return next((error for error in reversed(logged) if error is not None), None)


@contextmanager
def kept_logs() -> Iterator[KeptLogs]:
    """Returns a context in which this thread's records of torch's loggers reach no handler."""
    kept = KeptLogs()
    names = [n for n in logging.root.manager.loggerDict if n == "torch" or n.startswith("torch.")]
    loggers = [logging.getLogger(name) for name in names]
    try:
        for logger in loggers:
            logger.addFilter(kept)
        yield kept
    finally:
        for logger in loggers:
            logger.removeFilter(kept)
