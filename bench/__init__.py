"""Side-by-side benchmarks: Tidemill and Apache Kafka, measured in the same run with the same client.

    python -m bench                      all workloads, five rounds, about 25 minutes on two cores
    python -m bench W1 W4 --rounds 7     some of them
    python -m bench --quick              small sizes, to see that everything works; never to be quoted

How a figure is made. Both brokers run on loopback, side by side, with fresh data directories and Kafka's
default durability (no fsync before the acknowledgement). A workload measures one broker at a time, in the
order A-B-B-A-A-B…, after a warm-up; a figure is the median of the rounds, its spread the smallest and the
largest. Clients are separate processes around librdkafka (`bench/client.py`), the same program with the same
settings for both.

The rooms: `client` is the load; `driver` starts and steers client processes; `session` holds the brokers, the
turns and the samples; `workloads/` says what is measured; `metrics` names the figures and the bars they have
to reach; `report` writes the JSON, the plot and the table; `limit` measures what the machine itself can move.

Limits: everything shares the same cores, as it does for a developer on a laptop, so throughput figures
include the client's own cost. Latencies on two cores are mostly the scheduler's; look at the ratio, not at
the number.
"""
