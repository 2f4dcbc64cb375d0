"""The checks of `verify`, a module for each family: tables in, a table of findings out.

Each uses DataFrames only, so that it runs locally, on a cluster and over Connect in the same way.
Only counts and a few examples are collected by the driver.
"""
