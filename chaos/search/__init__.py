"""Looking for failures and making them small: runs, campaigns, replay, shrinking, crash points."""
