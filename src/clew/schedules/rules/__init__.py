"""The schedule rules, one per file."""
