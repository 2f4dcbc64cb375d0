"""A packet switch in a process of its own, between network namespaces."""
