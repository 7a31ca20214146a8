"""Copies of a database: exports as JSON lines, which any database can import."""
