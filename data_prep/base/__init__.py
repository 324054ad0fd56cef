"""What everything stands on: errors, files, commands, progress, memory, words, draws by name."""
