"""Speed and memory, measured as ratios."""
