"""Schedule primitives, a file per group. Each is a function from a nest to a nest that checks its
own legality.
"""
