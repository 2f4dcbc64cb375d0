"""A running cluster as a picture in a browser, with buttons that break it.

`feed` holds what there is to see, `server` hands it out on loopback, `attendant` fills it from a
run of the testbed and `watch` from a cluster of `rocketbed cluster`.
"""
