"""A record of everything that outlives a process, and its removal after any end."""
