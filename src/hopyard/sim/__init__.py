"""The same core behind a virtual clock: what a run would do on slots that do not exist."""

from hopyard.sim.forecast import Forecast, predict
from hopyard.sim.world import Host

__all__ = ["Forecast", "Host", "predict"]
