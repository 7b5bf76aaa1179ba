"""Full screens of the panel."""
