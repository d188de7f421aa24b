"""An agent's work for a program: one process of the user's code."""
