"""Observation -> features -> heads. Nets know no losses."""
