"""Topics as tables: the source, the sink, the lake and the jobs on Spark, all through PySpark.

`spark.read.format("tidemill")` reaches this package through the module `pyspark_tidemill`, which Spark finds by its
name. Everything here talks to brokers over the wire; `client` holds the connections, `options` reads what a user wrote
in `.option(...)`, `source` and `sink` do the work in Spark's tasks.
"""
