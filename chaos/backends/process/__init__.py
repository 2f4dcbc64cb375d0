"""Real processes on this machine: started, killed, watched."""
