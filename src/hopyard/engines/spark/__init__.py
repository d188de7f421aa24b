"""Supervisors on the executors of a Spark session: the engine, its jobs, and what runs in a task of one."""
