"""Where a run keeps things: the journal, the States, shared memory, and the paths of a run directory.

journal.py  append, sync, replay
layout.py   the one place that knows the paths of a run directory
tree.py     the codec of States
arena.py    shared memory between the agents of one host
states.py   where States are kept: a directory, or any fsspec URL
bulk/       States by network
"""
