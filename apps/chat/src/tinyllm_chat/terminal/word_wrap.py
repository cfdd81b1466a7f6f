"""Word wrap for text that arrives in pieces."""

import unicodedata

_TAB = 8
_JOINER = "\N{ZERO WIDTH JOINER}"


class WordWrap:
    """Inserts a line feed where a terminal would break a word at its right edge.

    Only the current word and the space before the word are held back. If the word does not fit on
    the line, a line feed replaces the space. The terminal breaks words that are longer than a line.

    A wide character, as in Chinese and Japanese, is a word of its own. Closing punctuation is an
    exception: it stays with the word before it.
    """

    def __init__(self) -> None:
        """Start at the beginning of a line."""
        self._column = 0
        self._space = ""
        self._word = ""
        self._width = 0  # of the word, in columns
        self._too_long = False  # True if the word is longer than a line

    def push(self, text: str, columns: int) -> str:
        """Add the next piece, and return the text that can be shown now.

        Args:
            text: a piece without control characters other than line feed and tab.
            columns: the current width of the terminal.
        """
        return "".join(self._push_char(char, columns) for char in text)

    def _push_char(self, char: str, columns: int) -> str:
        if char == "\n":
            shown = self._finish_word(columns) + self._flush_space(columns) + char
            self._column, self._too_long = 0, False
            return shown
        if char in " \t":
            shown = self._finish_word(columns)
            self._space += char
            self._too_long = False
            return shown
        width = _char_width(char)
        self._too_long &= width < 2
        shown = self._finish_word(columns) if self._word and self._may_break(char, width) else ""
        self._word += char
        self._width += width
        if self._width > columns or self._too_long:
            shown += self._flush_space(columns) + self._flush_word(columns)
            self._too_long = True
        return shown

    def _may_break(self, char: str, width: int) -> bool:
        """Return True if a line may end between the word and `char`, with no space between them."""
        if width == 0 or self._word.endswith(_JOINER):
            return False
        closes = unicodedata.category(char) in {"Pe", "Pf", "Po"}
        return not closes if width > 1 else _char_width(self._word[-1]) > 1 and not closes

    def _finish_word(self, columns: int) -> str:
        """Return the complete word, after a line feed if it does not fit on the current line."""
        if not self._word:
            return ""
        if self._column and self._column_after_space(columns) + self._width > columns:
            self._space, self._column = "", 0
            return "\n" + self._flush_word(columns)
        return self._flush_space(columns) + self._flush_word(columns)

    def _column_after_space(self, columns: int) -> int:
        """Return the column after the held space. A tab never moves beyond the right edge."""
        column = self._column
        for char in self._space:
            column += 1 if char == " " else min(_TAB - column % _TAB, max(columns - column, 0))
        return column

    def _flush_space(self, columns: int) -> str:
        """Return the held space, or an empty string if the space would pass the right edge."""
        end, space = self._column_after_space(columns), self._space
        self._space = ""
        if end > columns:
            return ""
        self._column = end
        return space

    def _flush_word(self, columns: int) -> str:
        """Return the held word, and update the column as a terminal that breaks long words does."""
        for char in self._word:
            width = _char_width(char)
            self._column = self._column + width if self._column + width <= columns else width
        word, self._word, self._width = self._word, "", 0
        return word


def _char_width(char: str) -> int:
    """Return the columns of a character; 0 if it combines with the character before it."""
    if char < "\u0300":  # Latin letters
        return 1
    from wcwidth import wcwidth  # imported here: takes 30 ms, and English does not need it

    return max(wcwidth(char), 0)
