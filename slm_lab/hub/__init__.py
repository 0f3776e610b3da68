"""Sharing run folders: on a Hugging Face dataset, or in a directory that others can see."""
