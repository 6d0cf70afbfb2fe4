"""The origin of every value: sources, spans, the lineage record, links, queries and export."""
