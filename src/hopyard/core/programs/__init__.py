"""The pure core of programs: roles, tasks, feeds."""
