"""The rows: what the user names (`dataset`), what is made of it once (`plan`, `encode`, `build`, `cache`, `manifest`)
and how a trial goes over it (`feed`). Knows nothing of models, trials or agents.
"""
