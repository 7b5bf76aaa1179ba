"""One launched server and its run folder: launch it, find it, stop it, see whether it runs."""
