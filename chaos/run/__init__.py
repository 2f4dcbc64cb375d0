"""Carries a plan out on any backend and records what happened."""
