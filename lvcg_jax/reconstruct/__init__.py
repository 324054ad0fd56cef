"""Hidden leads from visible ones."""
