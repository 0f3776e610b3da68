"""Kills, full disks and divergence: what was good stays good, and the rest is said."""

from __future__ import annotations
