"""What is minimised, and when."""
