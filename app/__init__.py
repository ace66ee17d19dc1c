"""The terminal app: command line, settings, dashboard. It never imports torch; the engine runs in a child process.

What the engine does reaches the app as step traces (`engine.trace`) and in no other way.
"""
