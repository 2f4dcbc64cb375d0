"""The wire protocol without any I/O: frames, headers, bodies, message records."""
