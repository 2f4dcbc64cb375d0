"""What a run is to do: cluster, load, faults in time; written as text, TOML or Python."""
