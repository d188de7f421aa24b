"""Consequences of faults: `rules` decides whether a trial ends or waits, `retries` requeues its units."""
