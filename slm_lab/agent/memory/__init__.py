"""Storage and indexing, nothing else: memories know no algorithms."""
