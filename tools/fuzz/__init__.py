"""Differential fuzzing: typed graphs over all operators, on every engine, until two disagree.

`choices` are where decisions come from, `graph` grows typed graphs, `operators/` is the table of
what each operator takes, `case` puts a case together. `engines` run it, `compare` judges results by
how far rounding can move them, `disagreements` lists where other engines leave the standard,
`rewrites` makes models that mean the same, `check` asks all this of one case. `worker` does it for
a range of seeds, `runner` keeps workers going, `shrink` makes what failed small, `coverage` says
which operators are missing and why. `python -m fuzz --help` is the way in; see docs/fuzzing.md.
"""
