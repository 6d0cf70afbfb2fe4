"""The loop IR: how a kernel runs, as an immutable nest of loops, and the schedule that shaped
it.
"""
