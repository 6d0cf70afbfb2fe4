"""Real networks with seeded weights, for tests, demo and benchmarks.

Models are built on first use into the git-ignored `.cache/models` of the checkout, atomically and
under a lock, so that parallel test workers share them. A change of the code that builds a model, or
of the libraries it is exported with, builds it anew.
"""

from zoo.store import dims, groups, inputs, names, path

__all__ = ["dims", "groups", "inputs", "names", "path"]
