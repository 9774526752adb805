"""A small blocking client of the Kafka protocol, made for Spark's processes.

    settings          where the cluster is and how to prove who we are
    connection        one socket: frames, versions, TLS, SASL
    cluster           metadata, leaders, offsets, coordinators; retries and routing
    fetching          reading one partition with one request in flight

Spark's driver asks for offsets a few times per batch, its tasks read one range of one partition each. A full consumer
(groups, heartbeats, a background thread) would do neither better; what counts is that the bytes of a fetch reach the
decoder without a detour, which no public client of Python offers.
"""
