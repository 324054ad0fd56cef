"""ECG of made-up hearts, with known truth."""
