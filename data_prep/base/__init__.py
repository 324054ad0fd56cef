"""What every other room uses: errors, files, commands, progress, memory, wording, hashed draws."""
