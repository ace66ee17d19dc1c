"""The same dashboard over a server elsewhere: what it tells of itself, in the form of step traces."""
