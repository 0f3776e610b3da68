"""Memories: storage and sampling of experience. They know no algorithms."""
