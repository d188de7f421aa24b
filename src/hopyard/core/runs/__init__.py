"""The pure core of runs: units, trials, States."""
