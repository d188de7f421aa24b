"""Engines: the places where agents run."""
