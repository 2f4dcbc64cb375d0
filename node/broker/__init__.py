"""The requests that a broker answers: sends, pulls, offsets, topics, groups, clients."""
