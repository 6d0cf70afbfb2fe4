"""Reads an exported program from its archive, or trusts torch to do it."""

from __future__ import annotations

import os
import warnings
from dataclasses import replace
from typing import Any, Final, NoReturn

from torch._export.serde import schema
from torch._export.serde.serialize import ExportedProgramDeserializer
from torch._export.utils import _get_shape_env_from_gm
from torch.export import ExportedProgram
from torch.export import load as load_by_torch
from torch.utils import _pytree as pytree

from clew.frontends.torch.file.operators import ForeignError
from clew.frontends.torch.file.reading import PickledError, Reader
from clew.frontends.torch.file.tensors import TensorReader
from clew.frontends.torch.file.trees import read_tree
from clew.frontends.torch.logs import kept_logs
from clew.support.archives import Archive
from clew.support.errors import ClewError, ModelError
from clew.support.files import json_of, open_plain, reason_of
from clew.support.trust import TRUST_HINT, is_trusted

_MODELS, _WEIGHTS, _CONSTANTS = "models/", "data/weights/", "data/constants/"
_NATIVE: Final = "data/aotinductor/"
_WRITE: Final = "write it with torch.export.save, by the same version of torch"
_LEAF: Final = pytree.treespec_dumps(pytree.tree_flatten(((), {}))[1])


def saved_program(path: str | os.PathLike[str]) -> ExportedProgram:
    """Returns a program that `torch.export.save` wrote, without running code in the file, unless
    the user trusts it (`support/trust.py`).

    Errors: M052 (it cannot be read), M053 (it needs pickle, or calls functions other than torch's
    operators: only a trusted file may), and those of the budgets.
    """
    shown = os.fspath(path)
    with kept_logs() as logs, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return _without_derived_ranges(_trusted(path) if is_trusted() else _read(path))
        except (MemoryError, ClewError):
            raise
        except PickledError as error:
            _refuse(shown, f"{error} is a pickle, and reading a pickle runs code that it contains")
        except ForeignError as error:
            called = str(error)[:200]
            _refuse(
                shown, f"it calls {called!r}, which is not an operator of torch that clew knows"
            )
        except OSError as error:
            reason = reason_of(error)
            raise ModelError("M052", f"{shown!r} cannot be read: {reason}") from None
        except Exception as error:  # of any type: it comes from torch
            raised: BaseException = error
    # torch logs the reason, and raises an error that refers to the log.
    cause = logs.error or raised
    while cause.__cause__ is not None:
        cause = cause.__cause__
    kind = "" if type(cause) is ValueError else f"{type(cause).__name__}: "
    raise ModelError(
        "M052", f"{shown!r} is not an exported program: {kind}{cause}", hint=_WRITE
    ) from raised


def _refuse(shown: str, why: str) -> NoReturn:
    raise ModelError("M053", f"{shown!r} can run code: {why}", hint=TRUST_HINT)


def _trusted(path: str | os.PathLike[str]) -> ExportedProgram:
    """Returns the program as torch reads it, which runs code in the file."""
    with open_plain(os.fspath(path)):  # a regular file
        return load_by_torch(os.fspath(path))


def _read(path: str | os.PathLike[str]) -> ExportedProgram:
    with Archive(os.fspath(path)) as archive:
        root = _root(archive)
        name = _model(archive, root)
        reader, tensors = Reader(), TensorReader(archive)

        def value(member: str) -> Any:
            return json_of(_member(archive, root + member))

        program = reader.read(schema.ExportedProgram, value(f"{_MODELS}{name}.json"))
        state, constants = (
            tensors.read(
                f"{root}{folder}",
                reader.read(schema.PayloadConfig, value(f"{folder}{name}_{kind}_config.json")),
            )
            for folder, kind in ((_WEIGHTS, "weights"), (_CONSTANTS, "constants"))
        )
        archive.check()
    entry = _entry(program.graph_module.module_call_graph)
    assert entry.signature is not None
    given = read_tree(entry.signature.in_spec), read_tree(entry.signature.out_spec)
    _check_trees(program.graph_module.signature, *given)
    # torch gets plain trees: the others name classes.
    entry = replace(entry, signature=replace(entry.signature, in_spec=_LEAF, out_spec=_LEAF))
    program.graph_module.module_call_graph = [entry]
    made = ExportedProgramDeserializer().deserialize(program, state, constants)
    signature = made.module_call_graph[0].signature
    assert signature is not None
    signature.in_spec, signature.out_spec = given
    return made


def _root(archive: Archive) -> str:
    """Returns the folder that holds all members of an archive.

    Errors: ValueError if it is not an archive of `torch.export.save`; PickledError for the older
    form.
    """
    names = archive.members
    root = f"{names[0].partition('/')[0]}/" if names else ""
    if f"{root}archive_format" in names and _member(archive, f"{root}archive_format") == b"pt2":
        version = _member(archive, f"{root}archive_version").strip()
        if version != b"0":
            raise ValueError(f"it is an archive of version {version[:20]!r}; 0 is read")
        order = f"{root}byteorder"
        if order in names and _member(archive, order) != b"little":
            raise ValueError("its numbers are big-endian")
        return root
    if "serialized_exported_program.json" in names:
        raise PickledError("of torch before 2.8: its weights")
    raise ValueError("the archive holds no program")


def _model(archive: Archive, root: str) -> str:
    """Returns the name of the program in an archive: `model`, or the only one. Errors: ValueError;
    PickledError if its tensors are in the older form.
    """
    start = f"{root}{_MODELS}"
    inside = [name.removeprefix(start) for name in archive.members if name.startswith(start)]
    names = [name.removesuffix(".json") for name in inside if name.endswith(".json")]
    if not names:
        if any(name.startswith(root + _NATIVE) for name in archive.members):
            raise ValueError("it holds native code of AOTInductor, but no program")
        raise ValueError("the archive holds no program")
    if "model" not in names and len(names) > 1:
        raise ValueError(f"it holds several programs: {', '.join(names)[:200]}")
    name = "model" if "model" in names else names[0]
    for folder in (_WEIGHTS, _CONSTANTS):
        if f"{root}{folder}{name}.pt" in archive.members:
            raise PickledError(f"the member {folder}{name}.pt")
    return name


def _member(archive: Archive, name: str) -> bytes:
    try:
        return archive.member(name)
    except KeyError:
        raise ValueError(f"it lacks {name!r}") from None


def _entry(entries: list[schema.ModuleCallEntry]) -> schema.ModuleCallEntry:
    """Returns the entry of the whole program; those of modules in it are not needed."""
    if not entries or entries[0].fqn or entries[0].signature is None:
        raise ValueError("it lacks the tree of its arguments")
    return entries[0]


def _check_trees(
    signature: schema.GraphSignature, given: pytree.TreeSpec, result: pytree.TreeSpec
) -> None:
    """Checks that trees have as many leaves as the program has arguments and results.

    Errors: ValueError.
    """
    parts = [] if given.is_leaf() else given.children()
    if given.type is not tuple or [part.type for part in parts] != [tuple, dict]:
        raise ValueError("the tree of its arguments is neither positional nor named")
    inputs = sum(s.type in ("user_input", "constant_input") for s in signature.input_specs)
    outputs = sum(s.type in ("user_output", "loss_output") for s in signature.output_specs)
    if (given.num_leaves, result.num_leaves) != (inputs, outputs):
        raise ValueError("the trees of its arguments and results have other numbers of leaves")


def _without_derived_ranges(program: ExportedProgram) -> ExportedProgram:
    """Removes the ranges of expressions (`2*s0`) that torch 2.13 reads from a file but cannot
    decompose. The ranges of their symbols remain.
    """
    env = _get_shape_env_from_gm(program.graph_module)
    for expression in list(env.var_to_range) if env is not None else ():
        if not expression.is_Symbol:
            del env.var_to_range[expression]
    return program
