"""Searches, which propose configurations. A Sampler is asked once for each trial; its answer enters the journal."""
