"""Code shared by the benchmark scripts: engines, alternating measurement, the FMA peak, counted
FLOPs.
"""
