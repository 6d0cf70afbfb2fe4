"""What the page shows: each file answers one route, from a `Session`, without any HTTP."""
