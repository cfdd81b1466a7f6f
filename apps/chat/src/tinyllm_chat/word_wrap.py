"""Lines that end between words, in text that comes in pieces."""

import unicodedata

_TAB = 8
_JOINER = "\N{ZERO WIDTH JOINER}"


class WordWrap:
    """Puts a line feed where a terminal would break a word at its right edge.

    Nothing is held back but the word that is under way and the space before it, which a line feed
    replaces. Words that no line can hold are left to the terminal. A wide character is a word of
    its own, as in Chinese and Japanese, but for one that closes what stands before it.
    """

    def __init__(self) -> None:
        """Start at the beginning of a line."""
        self._column = 0
        self._space = ""
        self._word = ""
        self._length = 0  # of the word, in columns
        self._endless = False  # whether it is one that no line can hold

    def push(self, text: str, columns: int) -> str:
        """Take the next piece, and give what can be shown of it.

        Args:
            text: without control characters, but for the line feed and the tab.
            columns: of the terminal, now.
        """
        return "".join(self._take(char, columns) for char in text)

    def _take(self, char: str, columns: int) -> str:
        if char == "\n":
            shown = self._place(columns) + self._show_space(columns) + char
            self._column, self._endless = 0, False
            return shown
        if char in " \t":
            shown = self._place(columns)
            self._space += char
            self._endless = False
            return shown
        width = _width(char)
        self._endless &= width < 2
        shown = self._place(columns) if self._word and self._may_break(char, width) else ""
        self._word += char
        self._length += width
        if self._length > columns or self._endless:
            shown += self._show_space(columns) + self._show_word(columns)
            self._endless = True
        return shown

    def _may_break(self, char: str, width: int) -> bool:
        """Whether a line may end between the word so far and a character, with no space there."""
        if width == 0 or self._word.endswith(_JOINER):
            return False
        closes = unicodedata.category(char) in {"Pe", "Pf", "Po"}
        return not closes if width > 1 else _width(self._word[-1]) > 1 and not closes

    def _place(self, columns: int) -> str:
        """The word that is complete, on this line or the next."""
        if not self._word:
            return ""
        if self._column and self._end_of_space(columns) + self._length > columns:
            self._space, self._column = "", 0
            return "\n" + self._show_word(columns)
        return self._show_space(columns) + self._show_word(columns)

    def _end_of_space(self, columns: int) -> int:
        """The column after the space, were it shown; a tab stops at the edge."""
        column = self._column
        for char in self._space:
            column += 1 if char == " " else min(_TAB - column % _TAB, max(columns - column, 0))
        return column

    def _show_space(self, columns: int) -> str:
        """The space; none where it would go over the edge."""
        end, space = self._end_of_space(columns), self._space
        self._space = ""
        if end > columns:
            return ""
        self._column = end
        return space

    def _show_word(self, columns: int) -> str:
        """The word from the column on, broken by the terminal if it must be."""
        for char in self._word:
            width = _width(char)
            self._column = self._column + width if self._column + width <= columns else width
        word, self._word, self._length = self._word, "", 0
        return word


def _width(char: str) -> int:
    """Columns of a character, none where it combines with the one before."""
    if char < "\u0300":  # Latin letters
        return 1
    from wcwidth import wcwidth  # 30 ms, which English can do without

    return max(wcwidth(char), 0)
