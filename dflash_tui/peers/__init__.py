"""One server over several hosts: run this program on each over ssh, and supervise the ranks there."""
