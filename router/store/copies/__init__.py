"""Copies of a database: exports as JSON lines, which any database can import, and backups of SQLite
databases.
"""
