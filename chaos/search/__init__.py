"""Search for failures and their reduction: runs, campaigns, replay, shrinking, crash points."""
