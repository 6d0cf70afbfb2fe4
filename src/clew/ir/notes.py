"""The notes and places of a module, in the attributes of its main function."""

from __future__ import annotations

from collections.abc import Sequence

from clew.ir.expr import Function
from clew.ir.module import Module
from clew.trace.lineage import building
from clew.trace.notes import NOTES, Note
from clew.trace.places import PLACES, CodePlace


def notes_of(module: Module) -> tuple[Note, ...]:
    """Returns the notes about the layers of a module. A text form may hold others, which are left
    out.
    """
    found = []
    for note in module.main.attrs.get(NOTES, ()):
        match note:
            case (str(layer), str(text), None | float() as error):
                found.append(Note(layer, text, error))
    return tuple(found)


def places_of(module: Module) -> tuple[CodePlace, ...]:
    """Returns where the layers of a module are called. A text form may hold others, which are left
    out.
    """
    found = []
    for place in module.main.attrs.get(PLACES, ()):
        match place:
            case (str(layer), str(path), str(kind), str(file), int(line), str(code)):
                found.append(CodePlace(layer, path, kind, file, line, code))
    return tuple(found)


def with_notes(module: Module, notes: Sequence[Note]) -> Module:
    """Returns the module with these notes instead of its own."""
    main = module.main
    attrs = {n: v for n, v in main.attrs.items() if n != NOTES}
    if notes:
        attrs[NOTES] = tuple(map(tuple, notes))
    with building(main.span):
        changed = Function(main.params, main.body, attrs, span=main.span)
    return module.with_functions({"main": changed})
