"""Views of records: text that survives a pipe and SVG that needs no fonts; computes nothing."""
