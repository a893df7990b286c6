"""The scenario file: every setting of a run, with units in the names, checked before anything starts."""
