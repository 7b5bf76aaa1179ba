"""What a plan may do beyond serving a model."""
