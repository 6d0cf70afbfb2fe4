"""Which operators of other vocabularies equal clew's: one table for each vocabulary, which its
importer and its exporter or backend read alike. Tables name operators and import no library.
"""
