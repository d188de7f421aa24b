"""The rows: what the user names (`dataset`), how it is prepared once (`sources`, `encoding`, `partitions`, `manifest`)
and how a trial reads it (`partitions.loader`). Knows nothing of models, trials or agents.
"""
