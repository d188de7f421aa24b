"""The rows: what the user names (`dataset`), what is made of it once (`sources`, `encoding`, `partitions`,
`manifest`) and how a trial goes over it (`partitions.loader`). Knows nothing of models, trials or agents.
"""
