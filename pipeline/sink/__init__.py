"""Rows into topics: keys that make retries recognisable, sends, markers of whole batches."""
