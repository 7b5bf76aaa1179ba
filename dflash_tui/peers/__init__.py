"""One server over several hosts: this program on each of them, told what to do over ssh, and what is watched there."""
