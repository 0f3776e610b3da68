"""Playback: load a trained agent, watch it act, write its policy as one file."""
