"""Prepared partitions on this host: built, cached, read batch by batch."""
