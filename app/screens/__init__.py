"""Screens over the dashboard, one file each."""
