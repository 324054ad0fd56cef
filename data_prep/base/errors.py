"""The one error that a user's mistake raises."""


class InputError(Exception):
    """Something the user gave cannot be used; the message is the one line that the user sees."""

    def __str__(self) -> str:
        """One line even where the message quotes a file with line breaks or control characters."""
        return "".join(letter if letter.isprintable() else " " for letter in super().__str__())
