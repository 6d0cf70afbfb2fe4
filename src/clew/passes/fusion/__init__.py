"""Passes that decide which operators share a kernel and which need none.

| question | file |
|---|---|
| which operators are one kernel | `fuse_ops.py`, by the rules of `fusion_groups.py` |
| what these rules exclude, since it is slow in one kernel | `row_moves.py`, `turned_reads.py` |
| which convolutions share a kernel | `melted_convolutions.py` |
| which products and softmaxes are a kernel of attention | `melt_attention.py` |
| what the fusions of users take | `mark_fusions.py`, `fuse_regions.py` |
| which operators need no kernel | `views.py`, and for parts of results `place_parts.py` |

How the operators of a kernel share loops is decided by `clew.schedules`.
"""
