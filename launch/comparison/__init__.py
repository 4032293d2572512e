"""The same task under every strategy, by turns on the same devices, side by side."""
