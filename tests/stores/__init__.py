"""Real file systems of clusters on this machine, for tests: HDFS and servers of S3."""
