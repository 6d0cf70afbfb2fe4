"""Non-maximum suppression."""

from __future__ import annotations

from clew.frontends.building import call, cast, fields, reshaped, scalar
from clew.frontends.tflite.layer import TfliteLayer
from clew.frontends.tflite.registry import Result, converter
from clew.ir.expr import Expr


@converter("NON_MAX_SUPPRESSION_V4", "NON_MAX_SUPPRESSION_V5")
def non_max_suppression(layer: TfliteLayer) -> Result:
    """Indices of the selected boxes, best first and padded with zeros; for V5 their scores; and
    their number.
    """
    if layer.op == "NON_MAX_SUPPRESSION_V5" and layer.known_one(5) != 0:
        return _soft(layer)
    most = layer.one_int(2, "the number of boxes")
    boxes, scores = layer.input(0), layer.input(1)
    count = boxes.tensor.shape[0]
    overlap, least = (cast(reshaped(layer.input(n), ()), "f64") for n in (3, 4))
    kept, counts = fields(
        call(
            "best_boxes",
            reshaped(boxes, (1, count, 4)),
            reshaped(scores, (1, 1, count)),
            scalar(most, "i64"),
            overlap,
            least,
            room=most,
        ),
        2,
    )
    found = kept.tensor.shape[2]
    places = reshaped(kept, (found,))
    if found != most:
        after = most - found
        places = call("pad", places, pads=(0, after), mode="constant", value=-1)
    missing = call("less", places, scalar(0, "i64"))
    places = call("where", missing, scalar(0, "i64"), places)
    number = cast(reshaped(counts, ()), "i32")
    if layer.op == "NON_MAX_SUPPRESSION_V4":
        return [cast(places, "i32"), number]
    chosen: Expr = call("gather", scores, places, axis=0)
    chosen = call("where", missing, scalar(0, "f32"), chosen)
    return [cast(places, "i32"), chosen, number]


def _soft(layer: TfliteLayer) -> Result:
    """Overlaps lower the scores of boxes."""
    most = layer.one_int(2, "the number of boxes")
    limits = (reshaped(layer.input(n), ()) for n in (3, 4, 5))
    found = call("soft_best_boxes", layer.input(0), layer.input(1), *limits, room=max(most, 0))
    places, chosen, count = fields(found, 3)
    inside = call("maximum", places, scalar(0, "i64"))
    return [cast(inside, "i32"), chosen, cast(count, "i32")]
