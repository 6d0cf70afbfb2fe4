"""Passes that choose the types that products are computed in."""
