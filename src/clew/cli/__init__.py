"""The command line: `clew run | compile | trace | ops | cache`, readers of the public API."""
