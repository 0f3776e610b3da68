"""Tests of slm_lab; a package, because another distribution installs one of this name."""
