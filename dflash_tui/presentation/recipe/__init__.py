"""Text of recipes and of the catalogue that they are made from: their JSON Schema, a pair as a row and as facts."""
