"""A scenario so small that a campaign of it takes seconds; STORM is for the test to set."""

SCENARIO = """
name = "tiny"
[cluster]
brokers = 1
nameservers = 1
repl = "async"
[load.producer]
count = 1
rate = 20
[calm]
at = "STORM"
drain = "2s"
"""
