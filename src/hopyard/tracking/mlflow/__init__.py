"""MLflow 3 as a tracker: a run for the search, with a child for each trial, and the best model as a pyfunc.

    sheets                 what the runs of MLflow are to hold: a pure function of the records
    tracker                compares that with what MLflow has, and sends the difference
    service                the few calls that this takes
    rest, store            the two ways to make them: HTTP, or the client of `mlflow-skinny`
    model, pyfunc          the best model as a folder that `mlflow.pyfunc.load_model` opens, and how it is opened

Servers are spoken to without MLflow's own packages. Databases and Databricks need the extra `mlflow`.
"""
