"""One launched server and its run folder: launch it, find it, stop it, and tell whether it is running."""
