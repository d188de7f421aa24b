"""A run that goes on: what its journal tells, failed trials that are tried again, and what the user adds."""
