"""Python imports this module as it starts, in processes that have its folder in PYTHONPATH."""

import light_imports

light_imports.install()
