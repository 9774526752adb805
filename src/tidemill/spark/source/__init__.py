"""The Spark source: topics read as tables, in batch and as a stream.

settings       the options of a read, checked
schema         the columns, and which of them are wanted
offsets        offsets as JSON, limits, ranges: pure arithmetic
planning       what the driver asks the cluster before it makes tasks
fetching       a range over the wire, one request ahead of the decoder
segments       a range from log files on the same host
batches        from bytes to whole, checked, decompressed batches of the wanted transactions
decoding       from batches to Arrow
batch_reader, stream_reader   Spark's interfaces over all of this
lag_listener   how far behind a query is, for people and metrics
"""
