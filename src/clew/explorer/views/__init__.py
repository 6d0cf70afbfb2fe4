"""The contents of the page: each file answers one route, from a `Session`, without any HTTP."""
