"""Attacks on clew from outside: a catalog of hostile files, a mutator, and monitors.

`cases` has the catalog, `nursery` runs each case in its own process, `mutants` makes new files out
of good ones, and `tools/mutate.py` feeds them to clew by the hundred thousand.
"""
