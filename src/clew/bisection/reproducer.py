"""Reproducers: a folder with the part at fault, its inputs, its expected outputs, and a script that
shows whether it still fails.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from clew import frontends
from clew.backends.cpu.schedule_choice import ScheduleFor, of_rule, recorded
from clew.backends.options import Options
from clew.bisection.checks import BuildCheck, Check, PassCheck, ValueCheck, quietly
from clew.bisection.reduced import Reduced, plain
from clew.ir.module import Module
from clew.ir.textfile import load_arrays, load_module, save_arrays, save_module
from clew.machine.target import Target
from clew.passes.base import Pass
from clew.schedules import Request, Rule
from clew.support.errors import InputError, TextError
from clew.support.files import read_bytes, read_json_file, reason_of, run_program
from clew.support.writing import write_bytes, write_text

_SCRIPT: Final = '''"""{summary}

Exits with 1 as long as the part of the model in this folder fails, else with 0.
"""

import sys
from pathlib import Path

from clew.bisection.reproducer import replay

error, tolerance = replay(Path(__file__).parent)
print(f"{{error:.3g}} off the expected result; at most {{tolerance:.3g}} is rounding")
sys.exit(error > tolerance)
'''


# --- writing --------------------------------------------------------------------------------------


def write(folder: Path, verdict: Mapping[str, Any], report: str, reduced: Reduced | None) -> Path:
    """Writes the reproducer of a verdict, given as JSON values and as Markdown, and returns the
    folder.

    Errors: I172 if it cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        document = dict(verdict)
        if reduced is not None:
            document["check"] = plain(_write_reduced(reduced, folder))
            script = _SCRIPT.format(summary=verdict["summary"].replace('"', "'"))
            write_text(folder / "reproduce.py", script)
        text = json.dumps(document, indent=2, allow_nan=False)
        write_text(folder / "report.json", f"{text}\n")
        write_text(folder / "report.md", report)
    except OSError as error:
        raise InputError(
            "I172", f"cannot write a reproducer to {str(folder)!r}: {reason_of(error)}"
        ) from None
    return folder


def _write_reduced(reduced: Reduced, folder: Path) -> dict[str, Any]:
    save_module(reduced.module, folder / "module.clew")
    save_arrays(folder / "inputs.npz", _arrays(reduced.inputs))
    save_arrays(folder / "expected.npz", _arrays(reduced.expected))
    record = _record(reduced.check, folder)
    if reduced.file is not None:
        record["model"] = f"model{reduced.file.suffix}"
        write_bytes(folder / record["model"], reduced.file.data)
    return record


def _record(check: Check, folder: Path) -> dict[str, Any]:
    """Returns a check as JSON values; copies users' files that it needs."""
    found: dict[str, Any] = {"tolerance": check.tolerance}
    match check:
        case PassCheck():
            made = _pass_record(check.changes, folder)
            return found | {
                "kind": "pass",
                "pass": made,
                "target": check.target.to_record() if check.target is not None else None,
                "opt_level": check.opt_level,
            }
        case BuildCheck():
            options = check.options
            return found | {
                "kind": "build",
                "target": options.target.to_record(),
                "threads": options.threads,
                "opt_level": options.opt_level,
                "bounds": options.bounds,
                "runs": check.runs,
                "schedules": [_schedule_record(s, folder) for s in options.schedules],
            }
    return found | {"kind": "value"}


def _pass_record(found: Pass, folder: Path) -> dict[str, Any]:
    if found.is_builtin:
        return {
            "module": type(found).__module__,
            "name": type(found).__name__,
            "options": found.options,
        }
    return {"file": _copied(getattr(found, "function", type(found)), folder), "name": found.name}


def _schedule_record(found: ScheduleFor, folder: Path) -> dict[str, Any]:
    if callable(found.how):
        return {"file": _copied(found.how, folder), "name": found.name}
    if isinstance(found.how, Rule):
        return {"file": _copied(type(found.how), folder), "name": found.name}
    if isinstance(found.how, Request):
        choose = str(found.how)
        return {"name": found.name, "choose": choose, "kernel": found.kernel, "ops": found.ops}
    steps = [str(step) for step in found.how]
    return {"name": found.name, "steps": steps, "kernel": found.kernel, "ops": found.ops}


def _copied(thing: Any, folder: Path) -> str:
    """Returns the name of a copy of the file that defines a user's object."""
    with contextlib.suppress(TypeError, OSError):
        source = inspect.getsourcefile(thing)
        if source is not None and os.path.isfile(source):
            write_bytes(folder / Path(source).name, read_bytes(source))
            return Path(source).name
    return ""


def _arrays(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: np.asarray(value, order="C") for name, value in values.items()}


# --- running --------------------------------------------------------------------------------------


def replay(folder: Path) -> tuple[float, float]:
    """Returns the current error of the part in a folder, and the error that rounding may cause.

    Errors: I175 for a folder without a reproducer, or one that needs a missing file of the user.
    """
    try:
        record = read_json_file(folder / "report.json")["check"]
        inputs = dict(load_arrays(folder / "inputs.npz"))
        expected = dict(load_arrays(folder / "expected.npz"))
        check = _check(record, folder)
        module = _module(record, folder)
    except (OSError, ValueError, KeyError, TypeError, TextError) as error:
        raise InputError(
            "I175", f"{str(folder)!r} has no reproducer that can be run: {reason_of(error)}"
        ) from None
    with quietly():
        return check.error(module, inputs, expected), check.tolerance


def _module(record: Mapping[str, Any], folder: Path) -> Module:
    if "model" in record:
        return frontends.load(folder / record["model"])
    return load_module(folder / "module.clew")


def _check(record: Mapping[str, Any], folder: Path) -> Check:
    tolerance = record["tolerance"]
    target = Target.of_record(record["target"]) if record.get("target") else None
    match record["kind"]:
        case "pass":
            return PassCheck(tolerance, _pass(record["pass"], folder), target, record["opt_level"])
        case "build":
            assert target is not None
            schedules = tuple(_schedule(s, folder) for s in record["schedules"])
            threads, level, bounds = record["threads"], record["opt_level"], record["bounds"]
            options = Options(target, threads, level, (), schedules, bounds=bounds)
            return BuildCheck(tolerance, options, record["runs"])
    return ValueCheck(tolerance)


def _pass(record: Mapping[str, Any], folder: Path) -> Pass:
    if "module" in record:
        kind = _builtin(record["module"], record["name"])
        given = {n: tuple(v) if isinstance(v, list) else v for n, v in record["options"].items()}
        return kind(**given)  # type: ignore[no-any-return]
    found = _of_users(record, folder)
    if not isinstance(found, Pass):
        raise ValueError(f"{record['name']} is not a pass")
    return found


def _builtin(module: str, name: str) -> type[Any]:
    """Returns the class of one of clew's own passes. The compiler has imported all of them."""
    kinds: list[type[Any]] = [Pass]
    while kinds:
        kind = kinds.pop()
        if (kind.__module__, kind.__name__) == (module, name):
            return kind
        kinds += kind.__subclasses__()
    raise ValueError(f"clew has no pass {name}")


def _schedule(record: Mapping[str, Any], folder: Path) -> ScheduleFor:
    if "steps" in record:
        steps = recorded(record["steps"])
        return ScheduleFor(record["name"], steps, record["kernel"], tuple(record["ops"]))
    if "choose" in record:
        request = Request.parse(record["choose"])
        return ScheduleFor(record["name"], request, record["kernel"], tuple(record["ops"]))
    found = _of_users(record, folder)
    if isinstance(found, Rule):
        return of_rule(found)
    if not isinstance(found, ScheduleFor):
        raise ValueError(f"{record['name']} is not a schedule")
    return found


def _of_users(record: Mapping[str, Any], folder: Path) -> Any:
    """Returns a pass or schedule by name from the copy of a user's file."""
    name = record["name"]
    if not record["file"]:
        raise ValueError(f"{name} was not made in a file")
    for value in run_program(folder / record["file"]).values():
        if isinstance(value, (Pass, ScheduleFor, Rule)) and value.name == name:
            return value
    raise ValueError(f"{record['file']} does not define {name} at its top level")
