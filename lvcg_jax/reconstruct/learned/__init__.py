"""Networks that derive leads, all trained by one trainer on one budget."""
