"""Scripted peers of a node under test: each says what a test wants and keeps what it is sent."""
