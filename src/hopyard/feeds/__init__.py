"""Feeds: rows into the processes of a program, and answers back; both ends of one protocol.

Each fed process has an endpoint. A task of Spark sends its partition to one worker, by preference on its executor or
host; the worker `partition % workers` records which, so a second attempt goes to the same. Blocks carry number and
digest: what comes twice is dropped (`core/programs/exactly_once.py`). Rows wait in the task's process, at most 64 MiB a
feed; a full queue blocks the sender, and under "min" and "cycle" the rest goes to files. In inference a partition stays
on one connection, by which its answers come back.
"""
