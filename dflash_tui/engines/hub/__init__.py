"""Models on the Hugging Face hub and in its cache: access, what is missing, downloads."""
