"""What a star adds to a strategy: keys, default members, skeletons, keys into dimensions, bridges and days. Pure."""
