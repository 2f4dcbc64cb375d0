"""The store: commit log, consume queues, index files, and their recovery.

Files are RocketMQ's, byte for byte; the way they are rebuilt after a crash is our own
(docs/reference/differences.md).
"""
