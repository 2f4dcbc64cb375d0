"""The checks of `verify`, a module for each family: tables in, a table of findings out.

Each works on DataFrames alone, so that it runs on a cluster and over Connect as it does here, and
brings no row to the driver but counts and a few examples.
"""
