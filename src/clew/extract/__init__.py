"""Parts of a model that run alone."""
