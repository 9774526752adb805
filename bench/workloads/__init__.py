"""What is measured, one module for each kind of load: a `measure_*` takes the session and records its samples."""
