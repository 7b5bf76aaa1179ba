"""One server over several hosts: which they are, and what each of their ranks runs."""
