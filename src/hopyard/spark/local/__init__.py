"""A Spark session on this machine, also where there is no Java."""
