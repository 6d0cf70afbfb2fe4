"""Kernels under the machine's roofline.

Source: Williams, Waterman and Patterson, Roofline: An Insightful Visual Performance Model for
Multicore Architectures, 2009.
"""

from __future__ import annotations

from clew.explorer.schema import Roofline, RooflinePoint
from clew.explorer.session import Session
from clew.explorer.views.measured import profile_of
from clew.support.errors import InputError


def roofline(session: Session) -> Roofline:
    """Returns roofs and kernels; kernels without arithmetic have an intensity of 0.

    Errors: I230 if the build was not profiled, I233 if the machine was not measured.
    """
    found = profile_of(session)
    limits = found.limits
    if limits is None:
        raise InputError(
            "I233", "the machine's limits have not been measured", hint="profile with the roofline"
        )
    rows = {row.name: row for row in found.kernels}
    points = []
    for place, kernel in enumerate(session.kernels):
        row = rows.get(kernel.name)
        if row is None or row.roof is None:
            continue
        roof = row.roof
        points.append(
            RooflinePoint(
                kernel=place,
                intensity=roof.flops / roof.bytes if roof.bytes else 0.0,
                gflops=roof.gflops,
                ns=row.ns,
                runs=row.runs,
                limit=roof.limit,
                limit_share=roof.limit_share,
            )
        )
    return Roofline(
        peak_gflops=limits.peak_gflops,
        tile_gflops=limits.tile_gflops,
        bandwidths=dict(limits.bandwidth_gbps),
        threads=limits.threads,
        points=points,
    )
