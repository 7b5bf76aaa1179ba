"""Commands around recipes, engines, patches and this machine."""
