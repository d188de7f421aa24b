"""The public modules of TensorFlowOnSpark 2.2.5, on programs of Hopyard.

    TFCluster    run, train, inference, shutdown          TFNode     DataFeed, hdfs_path
    TFParallel   run                                      pipeline   TFEstimator, TFModel, Namespace
    dfutil       saveAsTFRecords, loadTFRecords           compat     export_saved_model, disable_auto_shard
    gpu_info     get_gpus                                 util       single_node_env

What is behind them is `hy.launch`, its feeds and its Spark engine; `docs/from-tensorflowonspark.md` says what differs.
The names, the arguments and their order are that library's, hence the capitals. `hopyard.compat.install()` makes
`import tensorflowonspark` find this package.
"""

__version__ = "2.2.5"
"""Version of the library whose public behaviour this package has."""
