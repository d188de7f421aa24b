"""A supervisor runs one agent, wherever a process can be started: in a Spark task, by an ssh login, or by hand.

messages.py    the messages of driver and supervisors
ticket.py      the address and the credentials with which a supervisor dials the driver
line.py        one end of their connection, in TLS where there is a certificate
supervisor.py  on the host: dials, and runs agents as the driver orders
host.py        on the host: a supervisor for each slot, where no other scheduler has slots
pod.py         in a pod: its process 1, which is such a host
listener.py    in the driver: the port, and the authentication of supervisors
pool.py        in the driver: the connections to supervisors, and their thread
roster.py      in the driver: the assignment of slots to supervisors
record.py      in the driver: the record of one supervisor
logs.py        in the driver: the output of agents

None of this knows how supervisors are placed: `engines/spark/`, `engines/hosts/` and `engines/kubernetes/` do, each by
a `Placement` (`engines/supervised.py`).
"""
