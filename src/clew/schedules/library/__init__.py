"""Code that schedule rules share."""
