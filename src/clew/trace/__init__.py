"""Where every value came from: sources, spans, the lineage record, links, queries and export."""
