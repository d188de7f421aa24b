"""The driver of a run."""
