"""Real networks with seeded weights, for tests, demo and benchmarks.

Models are built on first use into the git-ignored `.cache/models` of the checkout, atomically and
under a lock, so that parallel test workers share them. A change of a model's builder, or of the
libraries that export it, triggers a rebuild.
"""

from zoo.store import dims, groups, inputs, names, path

__all__ = ["dims", "groups", "inputs", "names", "path"]
