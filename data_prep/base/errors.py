"""The exception for a mistake by the user."""


class InputError(ValueError):
    """Something that the user gave cannot be used; the message is the one line that they see."""

    def __str__(self) -> str:
        """The message on one line, even if it quotes a file with line breaks or control
        characters."""
        return "".join(letter if letter.isprintable() else " " for letter in super().__str__())


class NotSaid(InputError):
    """Neither the file nor the caller says the rate, unit or leads of a record."""
