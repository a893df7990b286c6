"""The run folder: a public, versioned format that the executors write and the analysis reads."""
