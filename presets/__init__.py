"""Data that ships with nanoviz: the prompts behind its keys."""
