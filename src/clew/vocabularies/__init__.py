"""Operators of other libraries that equal one of clew's: one table for each library. Its importer,
exporter and backend derive rules from the table. The tables name operators and import no library.
"""
