"""VTA as a backend: it takes quantized layers that it computes exactly."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence

from clew.backends.backend import Backend, CompiledRegion
from clew.backends.records import function_of_record, function_record
from clew.backends.vta.config import Config
from clew.backends.vta.kinds import KINDS, recognized_match
from clew.backends.vta.pooled_convolution import why_not_pooled
from clew.backends.vta.recognize import Refused
from clew.backends.vta.recognize_operators import PooledLayer
from clew.backends.vta.regions import VtaRegion, compiled_region, pool_of_layer
from clew.backends.vta.split_grids import SplitGrids
from clew.ir.expr import Function
from clew.machine.target import Target
from clew.passes.base import Pass
from clew.passes.placement.claims import RegionPattern
from clew.patterns import Match
from clew.version import package_version


class Vta(Backend):
    """Runs quantized convolutions with their bias, addition, shift, clip and max pool, and other
    additions and max pools of bytes, on a simulated VTA.

    With `overlap`, loads, computation and stores run at the same time. Results equal those of the
    graph, bit for bit: a layer whose scales are not powers of two, or whose sums may be ties, stays
    on the CPU. `search` chooses the tiles of convolutions in the timing model, not by an estimate,
    which takes up to about a second for each new size of layer in a process.
    """

    name = "vta"

    def __init__(
        self, config: Config | None = None, *, overlap: bool = True, search: bool = False
    ) -> None:
        self.config = config or Config.default()
        self.overlap = overlap
        self.search = search
        sizes = json.dumps(dataclasses.asdict(self.config), sort_keys=True)
        self.key = f"{package_version()} {overlap} {search} {sizes}"
        self.patterns: Sequence[RegionPattern] = tuple(
            RegionPattern(kind.name, kind.pattern(), self._computes) for kind in KINDS
        )

    def _computes(self, found: Match) -> bool:
        return not self.why_not_match(found)

    def why_not_match(self, found: Match) -> str:
        """Returns why a match of a pattern is not computed exactly, or why a convolution and its
        pool are better two layers; empty if it is computed.
        """
        try:
            layer = recognized_match(found, self.config.block_in)
        except Refused as error:
            return str(error)
        if not isinstance(layer, PooledLayer):
            return ""
        pool = pool_of_layer(layer, self.config)
        return why_not_pooled(layer.layer.conv, pool, self.config, 2 if self.overlap else 1)

    def passes(self, target: Target) -> Sequence[Pass]:
        return (SplitGrids(),)

    def compile(self, region: Function, target: Target) -> CompiledRegion:
        return self._compiled(region)

    def to_record(self, region: CompiledRegion) -> bytes | None:
        assert isinstance(region, VtaRegion)
        return function_record(region.function)

    def of_record(self, record: bytes) -> CompiledRegion:
        return self._compiled(function_of_record(record))

    def _compiled(self, region: Function) -> VtaRegion:
        return compiled_region(region, self.config, overlap=self.overlap, search=self.search)
