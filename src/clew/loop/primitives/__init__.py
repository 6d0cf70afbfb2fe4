"""Schedule primitives, a file a group. Each is a function from a nest to a nest that checks
itself.
"""
