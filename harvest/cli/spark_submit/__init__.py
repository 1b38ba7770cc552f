"""What `spark-submit` starts for the command `harvest`: see `marshal_py.cli.spark_submit`."""
