"""An agent's work on the units of a run."""
