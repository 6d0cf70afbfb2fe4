"""`clew.quantize`: models whose products compute on integers.

`quantizing.py` has the function and the order of its steps. `norms.py` folds batch norms,
`sites.py` finds the products, and `where.py` and `scheme.py` say how each is quantized. `feeds.py`
reads calibration data; `observe.py` runs the model on them, `progress.py` reports how far it is,
and `totals.py` adds up values by channel. `ranges.py` chooses the range of each value from its
distribution, `migration.py` numbers for its channels. `parameters.py` has the
numbers of a quantized layer and their form as expressions, and `sums.py` finds the operands of
residual additions that are rounded. `simulate.py` measures errors and evaluates any choice of
layers in one program;
`search.py` finds the smallest set of layers that must stay in floats. `recipe.py` keeps the
decisions as data, and `apply.py` makes the quantized module from them. `result.py` has the result,
`layer_rows.py` the rows of its table, and `times.py` what layers cost. The folder is not called
`quantize` because `clew.quantize` is the function.
"""

from clew.quantization.quantizing import quantize
from clew.quantization.recipe import LayerRecipe, Recipe, SumRecipe
from clew.quantization.result import Quantized
from clew.quantization.scheme import Rule, Scheme
from clew.quantization.search import FloatSet, Put, Step
from clew.quantization.table import LayerRow
from clew.quantization.times import LayerTime, Timing
from clew.quantization.where import Where

__all__ = [
    "FloatSet",
    "LayerRecipe",
    "LayerRow",
    "LayerTime",
    "Put",
    "Quantized",
    "Recipe",
    "Rule",
    "Scheme",
    "Step",
    "SumRecipe",
    "Timing",
    "Where",
    "quantize",
]
