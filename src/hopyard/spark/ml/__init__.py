"""A pyspark.ml Estimator and its Model."""
