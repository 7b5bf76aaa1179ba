"""The engine of the panel: recipes, engines, servers and their measurements; free of any user interface."""
