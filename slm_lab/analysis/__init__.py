"""Metrics, tables and graphs from results on disk, without torch."""
