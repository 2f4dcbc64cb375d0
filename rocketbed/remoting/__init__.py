"""Frames on streams: connections, servers, request tables."""
