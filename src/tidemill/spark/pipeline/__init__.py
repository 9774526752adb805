"""Running jobs: configuration, session, progress, events, status, report. `runner` ties them together."""
