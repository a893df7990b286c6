"""Flow-level simulation of the same scenarios."""
