"""Learning steps: a pure loss and an optimiser, compiled or eager."""
