"""Store directories as rows: from the bytes of segments to Arrow batches, without Spark."""
