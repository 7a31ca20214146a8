"""Copies of a database: exports, and the restore of backups. An export is a file of JSON lines, and
can be imported into SQLite and PostgreSQL. A backup is a copy of a SQLite database.
"""
