"""Prepared rows on storage that several hosts share."""
