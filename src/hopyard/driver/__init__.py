"""What runs in the user's process: the loops around the machines, and the user's objects of runs and programs."""
