"""Tables from topics, exactly once: Delta Lake by delta-rs, plain Parquet, Iceberg.

A micro-batch becomes rows of a table in three steps. Executors write Parquet files that no reader can see yet
(`files`); the driver collects their names, a few hundred bytes for each; the driver commits them in one
atomic change of the table that also records (query id, batch id) (`delta`, `parquet`, `iceberg`). Spark
repeats the last batch after a crash: before it writes anything, `append` asks the table whether that batch is
in it.

    crash before the commit     files that no table names; vacuum removes them; the batch is written again
    crash after the commit      the table answers "committed"; nothing is written

See docs/decisions/0022-lake-commit.md for the whole argument.
"""
