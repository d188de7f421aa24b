"""The arrows between packages, and inside them, run one way; heavy packages are imported only where they are listed."""

import ast
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "hopyard"

LEVELS = [
    {"text"},
    {"errors"},
    {"checks"},
    {"stopping"},
    {"spec"},
    {"space", "parallel"},
    {"core"},
    {"system"},
    {"ports", "trackers", "meter", "logged", "code", "filesystems", "folders", "certificate"},
    {"formats"},
    {"sparkapi"},
    {"frameworks", "data", "store", "search", "engines", "views", "exchange"},
    {"training", "feeds"},
    {"agent"},
    {"driver", "sim"},
    {"demo", "spark", "tracking"},
    {"compat", "doctor"},
    {"cli"},
]
INSIDE = {
    "core": [{"keyed"}, {"facts", "liveness", "contention"}, {"runs", "programs"}, {"delivery"}, {"messages"}],
    "data": [
        {"manifest", "assignment", "columns"},
        {"ragged"},
        {"npy", "options", "keywords"},
        {"rows"},
        {"sources", "encoding"},
        {"shared"},
        {"partitions"},
        {"from_spark"},
        {"dataset"},
        {"new_rows"},
    ],
    "frameworks": [{"rounds", "frozen"}, {"torch"}, {"tree"}, {"tensorflow"}, {""}, {"linear", "keras", "jax"}],
    "agent": [
        {"parent", "progress", "import_hooks"},
        {"connection"},
        {"companion"},
        {"runs", "programs"},
        {"main"},
        {"template"},
        {"__main__"},
    ],
}
"""Levels inside a package. What it has at its own top is a level of its own; "" is its `__init__`."""
PRODUCTS = {"runs", "programs"}
"""Never import each other, in core, agent and driver."""
PURE = {
    "__future__",
    "collections",
    "dataclasses",
    "functools",
    "hashlib",
    "heapq",
    "math",
    "typing",
    "msgspec",
    "itertools",
    "bisect",
    "re",
}
FACES = {"demo", "doctor", "cli"}
"""Rooms that may use the public names, `hopyard.select` and the like."""
PUBLIC = set(
    ast.literal_eval(
        next(
            line.value
            for line in ast.parse((SOURCE / "__init__.py").read_text()).body
            if isinstance(line, ast.Assign) and ast.unparse(line.targets[0]) == "_WHERE"
        )
    )
) | {"keras", "torch"}
HEAVY = {
    "torch": {
        "exchange/",
        "frameworks/torch/",
        "frameworks/keras/loops/torch.py",
        "feeds/adapters.py",
        "agent/programs/ports.py",
        "demo.py",
    },
    "matplotlib": {"views/gantt.py", "views/plot.py"},
    "pandas": {"driver/runs/trial.py"},
    "IPython": {"views/live.py"},
    "keras": {"frameworks/keras/", "compat/tensorflowonspark/compat.py"},
    "tensorflow": {
        "frameworks/keras/loops/tensorflow.py",
        "frameworks/keras/loops/tensorflow_gang.py",
        "frameworks/tensorflow/",
        "feeds/adapters.py",
        "compat/tensorflowonspark/",
    },
    "jax": {"frameworks/keras/loops/jax.py", "frameworks/jax/"},
    "pyspark": {
        "sparkapi/",
        "data/from_spark/",
        "feeds/spark_tasks.py",
        "engines/spark/",
        "spark/",
        "compat/tensorflowonspark/",
        "cli/programs.py",
    },
    "cryptography": {"certificate.py", "store/bulk/connection.py"},
    "kubernetes": {"engines/kubernetes/api.py", "engines/kubernetes/configuration.py"},
    "optuna": {"search/bridge.py"},
    "mlflow": {"tracking/mlflow/store.py"},
    "sqlalchemy": {"tracking/mlflow/store.py"},
    "tensorboard": {"tracking/summaries.py"},
}
"""Package → the files and folders that may import it."""


@cache
def imports(path: Path, types: bool = False) -> list[str]:
    """Full names of all that a file imports, at the top or inside a function; with `types`, for type checkers too."""
    found = []
    tree = ast.parse(path.read_text())
    skipped = {
        id(inner)
        for node in ast.walk(tree)
        if not types and isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: relative import"
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return found


def files() -> list[Path]:
    return [path for path in sorted(SOURCE.rglob("*.py")) if path != SOURCE / "__init__.py"]


def module(path: Path) -> str:
    """Name below `hopyard`: "core.runs.machine"."""
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")


@cache
def arrows() -> dict[str, set[str]]:
    """Module → the modules of Hopyard that it imports, late and for type checkers too."""
    known = {module(path): path for path in files()}
    graph: dict[str, set[str]] = {}
    for here, path in known.items():
        graph[here] = set()
        for name in imports(path, types=True):
            there = name.removeprefix("hopyard.") if name.startswith("hopyard.") else ""
            while there and there not in known:
                there = there.rpartition(".")[0]
            if there and there != here:
                graph[here].add(there)
    return graph


def level(name: str, levels: list[set[str]]) -> int:
    return next(number for number, names in enumerate(levels) if name in names)


def test_arrows_run_one_way() -> None:
    wrong = []
    for path in files():
        if path.name == "__main__.py":
            continue
        here = module(path).partition(".")[0]
        for name in imports(path):
            parts = name.split(".")
            if parts[0] != "hopyard" or len(parts) < 2 or parts[1] == "__version__":
                continue
            there = parts[1]
            if there in PUBLIC and here in FACES:  # the face itself, used as any user would
                continue
            if there != here and level(there, LEVELS) >= level(here, LEVELS):
                wrong.append(f"{path.relative_to(SOURCE)} imports {name}")
    assert not wrong


@pytest.mark.parametrize("package", INSIDE)
def test_arrows_inside_a_package_run_one_way(package: str) -> None:
    levels = INSIDE[package]
    wrong = []
    for here, others in arrows().items():
        for there in others:
            if not (here + ".").startswith(package + ".") or not (there + ".").startswith(package + "."):
                continue
            above, below = ((*name.split("."), "")[1] for name in (here, there))
            if above != below and level(below, levels) >= level(above, levels):
                wrong.append(f"{here} imports {there}")
    assert not wrong


def test_runs_and_programs_never_import_each_other() -> None:
    wrong = []
    for here, others in arrows().items():
        for there in others:
            (room, one), (_, other) = ((*name.split("."), "")[:2] for name in (here, there))
            if room in {"core", "agent", "driver"} and {one, other} == PRODUCTS:
                wrong.append(f"{here} imports {there}")
    assert not wrong


def test_there_is_no_circle() -> None:
    graph = arrows()
    order = TopologicalSorter(graph)
    order.prepare()  # raises CycleError, which names one


def test_every_package_is_on_the_map() -> None:
    known = set().union(*LEVELS) | {"__main__"}
    assert {module(path).partition(".")[0] for path in files()} <= known


def test_the_core_is_pure() -> None:
    wrong = []
    for path in sorted((SOURCE / "core").rglob("*.py")):
        for name in imports(path):
            top = name.split(".")[0]
            if top == "hopyard":
                assert name.split(".")[1] in {"checks", "core", "errors", "spec", "space", "stopping", "text"}, (
                    f"{path.name} imports {name}"
                )
                continue
            if top not in PURE:
                wrong.append(f"{path.name} imports {name}")
    assert not wrong


def test_heavy_packages_only_where_listed() -> None:
    wrong = []
    for path in files():
        where = path.relative_to(SOURCE).as_posix()
        for name in imports(path):
            allowed = HEAVY.get(name.split(".")[0])
            if allowed is not None and not where.startswith(tuple(allowed)):
                wrong.append(f"{where} imports {name}")
    assert not wrong
