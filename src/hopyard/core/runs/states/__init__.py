"""The States of a run's trials: which are kept, and which must be stored until when."""
