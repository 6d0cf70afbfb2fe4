"""From a model and the options of `clew.compile` to a built model: passes, extensions, records."""
