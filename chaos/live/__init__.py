"""A running cluster as a picture in a browser, with buttons that inject faults.

`feed` holds the values to show, `server` serves them on loopback, `attendant` fills them from a run
of the testbed and `watch` from a cluster of `rocketbed cluster`.
"""
