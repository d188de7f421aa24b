"""The pure core of programs: `machine` decides about their tasks, `feeding` about their feeds."""
