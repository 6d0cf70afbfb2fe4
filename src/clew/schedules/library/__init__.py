"""What schedule rules share."""
