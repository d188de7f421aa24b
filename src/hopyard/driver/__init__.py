"""What runs in the user's process: the loop around the machine, and what the user holds of a run."""
