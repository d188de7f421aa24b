"""The arrows between rooms run one way; heavy packages are imported only where they are listed. Nothing is run."""

import ast
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src" / "hopyard"

LEVELS = [
    {"errors"},
    {"checks"},
    {"spec"},
    {"space"},
    {"core"},
    {"ports", "sessions", "hosts", "code", "filesystems", "scratch", "meter", "system"},
    {"frameworks", "data", "store", "search", "engines", "views"},
    {"agent"},
    {"driver", "sim", "testing"},
    {"demo", "spark"},
    {"compat", "doctor"},
    {"cli"},
]
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
            if isinstance(line, ast.Assign) and line.targets[0].id == "_WHERE"
        )
    )
) | {"keras", "torch"}
HEAVY = {
    "torch": {
        "frameworks/torch.py",
        "frameworks/torch_checks.py",
        "frameworks/torch_files.py",
        "frameworks/torch_leaf.py",
        "frameworks/torch_metrics.py",
        "frameworks/torch_state.py",
        "frameworks/torch_tools.py",
        "frameworks/keras_torch.py",
        "agent/handed.py",
        "agent/rendezvous.py",
        "demo.py",
    },
    "matplotlib": {"views/gantt.py", "views/chart.py"},
    "pandas": {"driver/run.py"},
    "IPython": {"views/table.py"},
    "keras": {
        "compat/tensorflowonspark/compat.py",
        "frameworks/keras.py",
        "frameworks/keras_callbacks.py",
        "frameworks/keras_jax.py",
        "frameworks/keras_likeness.py",
        "frameworks/keras_settings.py",
        "frameworks/keras_shapes.py",
        "frameworks/keras_state.py",
        "frameworks/keras_sums.py",
        "frameworks/keras_tensorflow.py",
        "frameworks/keras_tools.py",
        "frameworks/keras_torch.py",
    },
    "tensorflow": {
        "agent/handed.py",
        "compat/tensorflowonspark/TFNode.py",
        "compat/tensorflowonspark/compat.py",
        "compat/tensorflowonspark/pipeline.py",
        "compat/tensorflowonspark/scoring.py",
        "frameworks/keras_tensorflow.py",
        "frameworks/tensorflow_tools.py",
    },
    "jax": {"frameworks/keras_jax.py", "frameworks/jax_tools.py"},
    "pyspark": {
        "compat/tensorflowonspark/TFCluster.py",
        "compat/tensorflowonspark/dfutil.py",
        "compat/tensorflowonspark/parameters.py",
        "compat/tensorflowonspark/pipeline.py",
        "data/feeding.py",
        "data/inferring.py",
        "data/reports.py",
        "data/spark.py",
        "engines/sitter.py",
        "engines/spark.py",
        "spark/blocks.py",
        "spark/estimator.py",
        "spark/files.py",
        "spark/local.py",
        "spark/model.py",
        "spark/params.py",
        "spark/predict.py",
        "spark/rows.py",
        "spark/scoring.py",
        "spark/tfrecords.py",
        "cli/programs.py",
    },
    "cryptography": {"store/certificate.py"},
    "kubernetes": set(),
    "optuna": set(),
    "mlflow": set(),
}


def imports(path: Path) -> list[str]:
    """Full names of all that a file imports, at the top or inside a function, but not for type checkers only."""
    found = []
    tree = ast.parse(path.read_text())
    skipped = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"
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


def room(path: Path) -> str:
    parts = path.relative_to(SOURCE).parts
    return parts[0].removesuffix(".py")


def level(name: str) -> int:
    return next(number for number, rooms in enumerate(LEVELS) if name in rooms)


def test_arrows_run_one_way() -> None:
    wrong = []
    for path in files():
        if path.name == "__main__.py":
            continue
        here = room(path)
        for name in imports(path):
            parts = name.split(".")
            if parts[0] != "hopyard" or len(parts) < 2 or parts[1] == "__version__":
                continue
            there = parts[1]
            if there in PUBLIC and here in FACES:  # the face itself, used as any user would
                continue
            if there != here and level(there) >= level(here):
                wrong.append(f"{path.relative_to(SOURCE)} imports {name}")
    assert not wrong


def test_every_room_is_on_the_map() -> None:
    known = set().union(*LEVELS) | {"__main__"}
    assert {room(path) for path in files()} <= known


def test_the_core_is_pure() -> None:
    wrong = []
    for path in sorted((SOURCE / "core").rglob("*.py")):
        for name in imports(path):
            top = name.split(".")[0]
            if top == "hopyard":
                assert name.split(".")[1] in {"checks", "core", "errors", "spec", "space"}, (
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
            if allowed is not None and where not in allowed:
                wrong.append(f"{where} imports {name}")
    assert not wrong
