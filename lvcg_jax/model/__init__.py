"""The network and its objective, as functions of a batch."""
