"""Execution of native code: memory, threads, segments, and the disk cache."""
