"""Trouble for tests and endurance runs: bad worlds for the machine (`chaos`), and a bad network (`proxy`)."""
