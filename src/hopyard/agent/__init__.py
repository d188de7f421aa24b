"""What runs in a worker: dials home, takes units, trains, hands States on."""
