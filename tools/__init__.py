"""Programs for those who work on rocketbed; not part of the package."""
