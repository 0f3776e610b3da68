"""Load a trained agent and let it act: enjoy, evaluate, export, record a video."""
