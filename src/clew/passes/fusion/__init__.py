"""Passes that decide which operators share a kernel and which need none."""
