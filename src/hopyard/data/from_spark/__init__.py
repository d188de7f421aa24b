"""A DataFrame of Spark, prepared by tasks on its executors."""
