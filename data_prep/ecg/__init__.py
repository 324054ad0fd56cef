"""ECG as numbers: leads, signal chain, beats, waves, quality, geometry. No files."""
