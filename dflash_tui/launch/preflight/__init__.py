"""The checks before a launch on this machine, each with a fix."""
