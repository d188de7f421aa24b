"""The pure core of programs: roles, tasks, feeds.

`ProgramMachine` is to a program what `Machine` is to a run: facts in, commands out; its journal is the list of facts.
Reserving (agents come up, each reserves ports) → running → completed, failed or stopped. *Failing* waits for `SETTLE`
seconds and prefers a killed process or a lost slot to an exception of its peer as the cause, as the first to notice is
seldom the first to fail. *Restarting* ends all of the old attempt before the new one begins; *closing* ends what only
serves. Each start of a task is an *incarnation*, which fences late messages of an earlier one.

`feeding` decides what a feed sends when: once each worker has opened its endpoint, one epoch after another, all of it
again to tasks that were restarted, and the end after the last row.
"""
