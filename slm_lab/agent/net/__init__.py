"""Nets: observation -> features -> heads. They know no losses."""
