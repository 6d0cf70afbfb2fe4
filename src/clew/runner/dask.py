"""Runs work on the workers of a Dask scheduler, all with one version of clew.

To measure, workers must be machines of one kind. A machine may have several workers: the lock of
`support.alone` makes them measure one at a time.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any, Final, TypeVar

from clew.runner.machine import machine_facts
from clew.runner.runner import Failed
from clew.support.alone import alone
from clew.support.errors import InputError
from clew.support.libraries import optional_library

Item = TypeVar("Item")
Result = TypeVar("Result")
_WAIT_S: Final = 20.0
_ATTEMPTS: Final = 3
_SOFTWARE: Final = ("clew", "toolchain")
_MEASURING: Final = ("machine", "cpus", *_SOFTWARE)


class DaskRunner:
    """The workers of a scheduler: one of each machine at a time if the work `measures`, else all.

    Work whose worker is lost is done again on another one. If it ends several workers, its result
    is `Failed`.
    """

    is_remote = True

    def __init__(self, address: str, wait_s: float = _WAIT_S, *, measures: bool = True) -> None:
        """Connects to a scheduler and waits for a worker.

        Errors: I387 if there is none, if workers differ, or without the library.
        """
        absent = InputError("I387", "distributed is not installed", hint="pip install 'clew[tune]'")
        self._library: Any = optional_library("distributed", absent)
        try:
            self.client: Any = self._library.Client(address, timeout=wait_s, set_as_default=False)
            self.client.wait_for_workers(1, timeout=wait_s)
        except (OSError, ValueError, TimeoutError) as error:
            raise InputError(
                "I387",
                f"no worker of the scheduler {address!r} answers: {error or type(error).__name__}",
                hint="start them: dask scheduler, and dask worker ADDRESS --nthreads 1 on each "
                "machine",
            ) from None
        self._measures = measures
        self._compared = _MEASURING if measures else _SOFTWARE
        self._facts = self._checked()

    def _checked(self) -> dict[str, Any]:
        """Returns the common facts of the workers. Errors: I387 if they differ."""
        try:
            found: dict[str, dict[str, Any]] = self.client.run(machine_facts)
        except Exception as error:  # whatever the import of clew raises there
            raise InputError(
                "I387",
                f"a worker cannot run clew: {type(error).__name__}: {error}",
                hint="install the same version of clew on all workers",
            ) from error
        (first, facts), *others = found.items()
        for name, other in others:
            for what in self._compared:
                if other[what] != facts[what]:
                    raise InputError(
                        "I387",
                        f"workers differ in {what}: {facts[what]} at {first}, {other[what]} at "
                        f"{name}",
                        hint="use alike workers only: measurements hold for machines of one kind"
                        if self._measures
                        else "install the same version of clew on all workers",
                    )
        return facts

    @property
    def places(self) -> int:
        """The number of items in work at once. When measuring, workers of one host take turns."""
        threads = self._threads()
        return max(1, len(threads) if self._measures else sum(threads.values()))

    @property
    def sharing(self) -> int:
        """The largest number of items that one machine works on at once."""
        return 1 if self._measures else max(self._threads().values(), default=1)

    def _threads(self) -> Counter[str]:
        """Returns the number of threads of the workers of each host."""
        found: Counter[str] = Counter()
        for worker in self.client.scheduler_info(n_workers=-1)["workers"].values():
            found[worker["host"]] += worker["nthreads"]
        return found

    def facts(self) -> dict[str, Any]:
        """Returns the common facts of the workers."""
        return self._facts

    def close(self) -> None:
        """Ends the connection."""
        self.client.close()

    def run(
        self, work: Callable[[Item], Result], items: Iterator[Item]
    ) -> Iterator[tuple[Item, Result | Failed]]:
        """Yields items and their results as they are ready. Functions, items and results are
        pickled.
        """
        shared = self._shared(work)
        waiting: dict[Any, tuple[Item, int]] = {}
        finished = self._library.as_completed(loop=self.client.loop)

        def submit(item: Item, attempt: int) -> None:
            future = self.client.submit(
                _done, shared, item, self._facts, self._compared, self._measures, pure=False
            )
            waiting[future] = item, attempt
            finished.add(future)

        ended = False
        try:
            while waiting or not ended:
                while not ended and len(waiting) < self.places:
                    try:
                        item = next(items)
                    except StopIteration:
                        ended = True
                        break
                    submit(item, 1)
                if not waiting:
                    return
                future = next(finished)
                item, attempt = waiting.pop(future)
                result = self._result(future)
                if result is None:  # the function was lost with a worker
                    if attempt == _ATTEMPTS:
                        result = Failed("its workers failed repeatedly")
                    else:
                        shared = self._shared(work)
                        submit(item, attempt + 1)
                        continue
                yield item, result[0] if isinstance(result, tuple) else result
        finally:
            for future in waiting:
                future.cancel()

    def _shared(self, work: Callable[[Item], Result]) -> Any:
        """Returns a task whose result is the function. Unlike scattered data, it is computed again
        where it is lost with a worker.

        Errors: I387 if the scheduler or a worker cannot read it.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # weights make it large
            made = self.client.submit(_given, work, pure=False)
        # The scheduler reads large tasks aside: one that depends on this might overtake it.
        error = made.exception()
        if error is not None:
            raise InputError(
                "I387",
                f"the workers cannot read what they should measure: {error}",
                hint="install the same versions of Python and clew on scheduler and workers",
            )
        return made

    def _result(self, future: Any) -> tuple[Any] | Failed | None:
        """Returns a result in a tuple; None if the task was cancelled.

        Errors: those of the work.
        """
        if future.cancelled():
            return None
        error = future.exception()
        if error is None:
            return (future.result(),)
        if isinstance(error, self._library.scheduler.KilledWorker):
            return Failed(f"it ended the processes of several workers: {error}")
        raise error


def _given(work: Item) -> Item:
    return work


def _done(
    work: Callable[[Item], Result],
    item: Item,
    facts: dict[str, Any],
    compared: tuple[str, ...],
    measures: bool,
) -> Result:
    """Runs on a worker. Errors: I387 on a machine unlike those at the start."""
    here = machine_facts()
    for what in compared:
        if here[what] != facts[what]:
            raise InputError(
                "I387", f"a worker joined that differs in {what}: {here[what]}, not {facts[what]}"
            )
    with alone() if measures else nullcontext():
        return work(item)
