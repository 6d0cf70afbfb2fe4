"""Patterns in RE2's syntax as automata on bytes.

`syntax` reads a pattern, `classes` asks RE2 which characters a class has, `automaton` makes a table
of states. RE2 stays the judge: it has accepted every pattern that is read here, and what is not
read here, or needs too many states, it matches itself.
"""
