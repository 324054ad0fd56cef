"""Operations written by hand where the library's are slow."""
