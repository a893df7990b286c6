"""The command zcube."""
