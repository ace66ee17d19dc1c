"""Comparison: several runs side by side, as lines of parts that a panel draws and a command prints."""
