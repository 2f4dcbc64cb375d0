"""The trial: a cluster of real processes under load, its nodes killed, its data checked.

`run.run_demo` is the whole of it; `rocketbed demo` is its command line.
"""
