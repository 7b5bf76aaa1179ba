"""What a plan says of its release: what is wrong with the pair there, and what is worth a try."""
