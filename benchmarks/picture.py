"""Draws `docs/gantt.png`, the picture in the README: the flights of `hopyard demo` on two workers.

python benchmarks/picture.py
"""

import tempfile
from pathlib import Path

import hopyard as hy
from hopyard.demo import flights_late

PICTURE = Path(__file__).parents[1] / "docs" / "gantt.png"


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name) / "run"
        flights_late(workers=2, trials=16, epochs=3, directory=directory)
        hy.load(directory).gantt(PICTURE)


if __name__ == "__main__":
    main()
