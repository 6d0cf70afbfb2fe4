"""Differential fuzzing: typed graphs over all operators, on every engine, until two disagree.

`choices` is the source of decisions, `graph` grows typed graphs, `operators/` is the table of every
operator's operands, `case` assembles a case. `engines` run it, `compare` judges results by the
possible effect of rounding, `disagreements` lists where other engines deviate from the standard,
`rewrites` makes equivalent models, `check` applies all this to one case. `worker` does it for a
range of seeds, `runner` keeps workers running, `shrink` reduces failures, `coverage` lists missing
operators with reasons. Start with `python -m fuzz --help`; see docs/fuzzing.md.
"""
