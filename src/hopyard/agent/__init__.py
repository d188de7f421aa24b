"""The agent, which runs in a worker: it connects to the driver, takes units, trains and passes States on."""
