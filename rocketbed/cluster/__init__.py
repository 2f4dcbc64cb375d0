"""An operator's cluster: started by one command, still there when the command has ended."""
