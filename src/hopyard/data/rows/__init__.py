"""Rows: their hashes, their names and their order."""
