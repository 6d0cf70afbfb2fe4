"""Benchmarks: engines measured alternately, and the machine's limits measured in the same
rounds.
"""
