"""The learning step: a pure loss and an optimiser, compiled or eager."""
