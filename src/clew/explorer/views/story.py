"""Stories of layers, kernels and regions, and of the origin of a line of code or a node."""

from __future__ import annotations

from clew.explorer.schema import Section, Story
from clew.explorer.session import Session
from clew.explorer.views.refs import parse_ref
from clew.explorer.views.source import source
from clew.explorer.views.stories.code import line_story, node_story
from clew.explorer.views.stories.kernel import kernel_story
from clew.explorer.views.stories.layer import layer_story
from clew.explorer.views.stories.parts import sentence
from clew.explorer.views.stories.region import region_story
from clew.explorer.views.stories.stage import stage_story
from clew.support.errors import InputError


def story(session: Session, ref: str) -> Story:
    """Returns the story of the thing that a ref names.

    Errors: I240 for text that is not a ref; I070 (layer), I071 (stage), I072 (line), I200 (kernel),
    I244 (region), I241 (node), I242 (line of the model) for things that do not exist.
    """
    place = parse_ref(session, ref)
    match place.kind:
        case "layer":
            return layer_story(session, place.name)
        case "kernel":
            return kernel_story(session, place.number)
        case "region":
            return region_story(session, place.number)
        case "stage":
            return stage_story(session, place.number)
        case "node":
            return node_story(session, place.line, place.number)
        case "source":
            return _source_story(session, place.line)
    return line_story(session, place)


def story_refs(session: Session) -> list[str]:
    """Returns the refs of the stories in a report: layers, kernels, regions and stages."""
    return [
        *(f"layer:{name}" for name in session.layers),
        *(f"kernel:{place}" for place in range(len(session.kernels))),
        *(f"region:{place}" for place in range(len(session.regions))),
        *(f"stage:{place}" for place in range(len(session.trace.stages))),
    ]


def _source_story(session: Session, line: int) -> Story:
    """Returns the story of the layer on a line of the model pane."""
    model = session.once(source)
    if not 0 < line <= len(model.line_layers):
        raise InputError("I242", f"the model has no line {line}",
                         hint=f"it has {len(model.line_layers)}")  # fmt: skip
    layer = model.line_layers[line - 1]
    if layer >= 0:
        return layer_story(session, list(session.layers)[layer])
    text = model.text.split("\n")[line - 1].strip()
    ref = f"source:{line}"
    return Story(ref, text, "", [Section("source", "model", ref, [sentence("No layer is here.")])])
