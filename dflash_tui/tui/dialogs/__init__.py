"""What is laid over a screen and answers with a value."""
