"""Actions of the page: measure, try a schedule. Each is a function of a `Session`."""
