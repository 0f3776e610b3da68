"""Everything that acts and learns."""
