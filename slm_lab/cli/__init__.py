"""Parse arguments, call one function, print."""
