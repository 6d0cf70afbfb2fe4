"""clew's documentation, built: `clew docs` opens the pages in this folder."""
