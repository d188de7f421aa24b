"""Supervisors: one agent each, wherever something can start a process: a Spark task, an ssh login, a hand.

messages.py    what driver and supervisors say to each other
ticket.py      what a supervisor needs to dial the driver
line.py        one end of their connection, in TLS where there is a certificate
supervisor.py  on the host: dials, runs agents as the driver orders, ends them with whatever ends
host.py        on the host: a supervisor for each slot, where no other scheduler has slots
listener.py    in the driver: who is let in
pool.py        in the driver: which supervisor has the agent of which slot
record.py      in the driver: what is known of one supervisor
logs.py        in the driver: what agents print

None of this knows how supervisors are placed: `engines/spark/` and `engines/hosts/` do, each by a `Placement`
(`engines/supervised.py`).
"""
