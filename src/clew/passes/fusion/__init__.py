"""Passes that choose which operators share a kernel, and which need none."""
