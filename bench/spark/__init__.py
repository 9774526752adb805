"""W12: Spark reading and writing topics, through Tidemill's connector and through Spark's own."""
