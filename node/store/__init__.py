"""The store: commit log, consume queues, index files, and their recovery.

Files are RocketMQ's, byte for byte; how they come to be there after a crash is not
(docs/reference/differences.md).
"""
