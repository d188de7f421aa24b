"""`python -m hopyard.agent`: how every engine starts an agent; users need no `__main__` guard.

`python -m hopyard.agent template …` starts the process of which agents are forked (`template.py`).
"""

import sys

from hopyard.agent.main import main

if sys.argv[1:2] == ["template"]:
    from hopyard.agent.template import serve

    serve(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
else:
    main()
