"""Reads run folders and says what happened: metrics, loads, comparisons, reports. Writes nothing into a
run."""
