"""An agent's work for a program: one process of the user's code.

The agent holds three ports and runs `main` in a child, which waits for its task with the interpreter up. So it sees a
crash, a hang or `os._exit` of the user's code as what it is, and the ports outlive it. The ports of the task and of JAX
are bound with SO_REUSEPORT, as gRPC binds them too; torch's store takes a listening socket, and starts with its first
client (`ports`).
"""
