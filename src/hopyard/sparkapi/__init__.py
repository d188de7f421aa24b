"""What is asked of Spark; knows no data set and no model."""
