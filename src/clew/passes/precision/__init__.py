"""Passes that choose the dtypes of products."""
