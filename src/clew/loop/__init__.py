"""The loop IR: the execution of a kernel as an immutable nest of loops, and the schedule that
shapes it.
"""
