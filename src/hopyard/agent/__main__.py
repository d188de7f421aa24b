"""`python -m hopyard.agent`: how every engine starts an agent; users need no `__main__` guard."""

from hopyard.agent.main import main

main()
