"""Small native loops that measure the machine they run on."""
