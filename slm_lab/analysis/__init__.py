"""Results on disk in; metrics, tables and plots out. Knows nothing of training or torch."""
