"""Python imports this module at its start when this folder is on PYTHONPATH: see `sink_crashes`."""

from sink_crashes import install_from_environment

install_from_environment()
