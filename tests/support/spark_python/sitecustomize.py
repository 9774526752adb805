"""Python imports this module at its start when this folder is on PYTHONPATH: what Spark's Python processes do first.

They carry out the `crash_plan` that the environment names. And they start quickly, because Spark starts a process for
every step of a plan and of a commit: pyspark is imported from where it is installed, with its compiled files, rather
than from the archive that Spark puts before it; and a daemon imports beforehand what its forks will need.
"""

import sys

from crash_plan import install_from_environment

sys.path[:] = [path for path in sys.path if not path.endswith("pyspark.zip")]

if "pyspark.daemon" in sys.orig_argv:
    import pandas  # noqa: F401
    import pyarrow  # noqa: F401
    import pyspark.sql.worker.create_data_source
    import pyspark.sql.worker.plan_data_source_read
    import pyspark.sql.worker.python_streaming_sink_runner
    import pyspark.sql.worker.write_into_data_source
    import pyspark.worker  # noqa: F401

    import tidemill.spark.sink
    import tidemill.spark.source  # noqa: F401

install_from_environment()
