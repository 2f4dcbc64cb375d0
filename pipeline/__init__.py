"""Many stored messages at once, on Spark: the data source `rocketbed` and the jobs built on it.

Importing this package imports no Spark: the node, the client and the testbed never need it.
"""
