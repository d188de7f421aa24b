"""Which trials of a search go on, wait or end, at the places where their metrics are looked at (`stopping` has the
rules): `search` owns what is known of it, `rung` is one place, `halving`, `cohorts` and `curves` decide.

Whatever is decided is a fact with its reason (`Paused`, `Granted`, `Stopped`, `Closed`), so a fold decides nothing.
"""
