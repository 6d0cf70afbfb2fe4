"""`clew.tune`: searches by measurement, and keeps the results in a file of records."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from clew import frontends
from clew.api.compile import compile
from clew.backends.compile_options import AUTO, CompileOptions
from clew.compiling.loading import loaded
from clew.ir.module import Module
from clew.records import Store, default_path
from clew.runner import runner_at
from clew.runner.machine import source_version, target_of_facts
from clew.runtime.threads import thread_count
from clew.support.errors import InputError
from clew.support.exhausted import coded_exhaustion
from clew.tuning.bench import Setup
from clew.tuning.report import TuneReport, report_of
from clew.tuning.session import Session, Tally


@coded_exhaustion
def tune(
    model: Module | frontends.ModelSource,
    *,
    minutes: float = 10.0,
    trials: int | None = None,
    database: str | Path = AUTO,
    scheduler: str | None = None,
    name: str = "",
    seed: int = 0,
    on_progress: Callable[[str], None] | None = None,
    **options: Any,
) -> TuneReport:
    """Searches the choices of a model's kernels by measurement for some minutes, or until there
    were a number of trials; returns the gain of each layer.

    Results are kept in `database` (`auto`: the default file, `CLEW_TUNING`), where `compile` finds
    them. `options` are those of `clew.compile` that the model is compiled with. `name` is the
    model's name in the records, by default that of its file. With `scheduler`, the address of a
    Dask scheduler, its workers measure; they must be machines of one kind. Ctrl-C ends the search;
    another call continues where it ended, also after a process was killed (docs/tune.md).

    Errors: I380 to I382 (`database`), I385 and I386 (`minutes`, `trials`), I387 (`scheduler`), I388
    for a model whose inputs have free sizes, and those of `compile`.
    """
    if not 0 < minutes <= 60 * 24 * 30:
        raise InputError("I385", f"minutes is {minutes}", hint="give a positive number")
    if trials is not None and trials < 1:
        raise InputError("I386", f"trials is {trials}", hint="give a positive number, or None")
    how = CompileOptions.of(options)
    module, how = loaded(model, how)
    path = database_path(database)
    say = on_progress or (lambda text: None)
    called = name or model_name(model)
    setup = Setup(called, module, how.loaded, seed)
    with Store(path) as store, runner_at(scheduler) as runner:
        session = Session(setup, store, runner, source_version(), say, seed)
        tally = session.tune(60.0 * minutes, trials)
        if runner.is_remote:  # the report is on kernels for the workers' machines
            how = how.changed(target=target_of_facts(runner.facts()), threads=session.threads)
    return tune_report(module, database=path, name=called, tally=tally, **how.loaded)


def tune_report(
    model: Module | frontends.ModelSource,
    *,
    database: str | Path = AUTO,
    name: str = "",
    tally: Tally | None = None,
    **options: Any,
) -> TuneReport:
    """Returns the gain of each layer of a model by the records in a file, and its reason.

    Errors: I380 to I382 (`database`), and those of `compile`.
    """
    called = name or model_name(model)
    how = CompileOptions.of(options)
    module, how = loaded(model, how)
    path = database_path(database)
    compiled = compile(module, **how.loaded.changed(tuned=path))
    with Store(path, write=False) as store:
        return report_of(compiled, store, called, thread_count(how.threads), tally)


def model_name(model: Any) -> str:
    """Returns the name of a model in the records: that of its file, without the suffix."""
    return Path(model).stem if isinstance(model, (str, Path)) else "model"


def database_path(database: str | Path) -> Path:
    """Returns the file of records."""
    return default_path() if str(database) == AUTO else Path(database)
