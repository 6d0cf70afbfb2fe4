"""Patterns in RE2's syntax as automata on bytes.

`syntax` reads a pattern, `classes` asks RE2 which characters a class has, `automaton` makes a table
of states. RE2 remains the reference: it has accepted every pattern that is read here, and matches
those that are not supported here or need too many states.
"""
