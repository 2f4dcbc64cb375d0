"""`make demo`: one run of the testbed on real processes, with nothing but Python installed.

A cluster of a master and two slaves is written to while its nodes are killed, one of them in the
middle of its recovery. It may begin with a copy of a user's store directory.
"""
