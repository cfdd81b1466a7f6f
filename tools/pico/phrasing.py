"""Variants of a question: synonyms, openings, case and typos, drawn again in every epoch."""

import random
import re
import string

SAME = (
    ("what is the difference between", "how do you tell apart", "what distinguishes",
     "what separates"),
    ("what is the purpose of", "what is the point of", "what is the use of", "what is the role of",
     "what is the job of", "what purpose has"),
    ("what is meant by", "what do people mean by", "what does one mean by", "what do you call"),
    ("what is the reason", "what is the cause", "why is it"),
    ("how can i", "how do i", "how could i", "how would i", "how should i", "how to", "how do you",
     "how does one", "how can one", "what is the way to", "is there a way to", "i want to",
     "i would like to", "i need to", "i am trying to", "what must i do to"),
    ("what is", "what's", "whats", "what exactly is", "wat is", "what would be", "what might be",
     "define", "what really is", "tell me what is", "explain what is"),
    ("what are", "what exactly are", "tell me what are", "which are"),
    ("explain", "describe", "clarify", "tell me about", "teach me about", "talk about",
     "give an explanation of", "say something about", "illustrate", "give me details of"),
    ("why", "why exactly", "for what reason", "how come", "what is the reason why"),
    ("how many", "what number of", "what is the number of"),
    ("how much", "what amount of"),
    ("how big", "how large", "what size"),
    ("how fast", "how quick", "how quickly", "at what speed"),
    ("difference between", "distinction between", "differences between"),
    ("versus", "vs", "vs.", "compared to", "compared with", "against", "in contrast to"),
    ("purpose", "point", "role", "aim", "goal", "job"),
    ("meaning", "definition"),
    ("advantage", "benefit", "upside", "gain"), ("drawback", "disadvantage", "downside"),
    ("compute", "calculate", "work out"), ("computed", "calculated", "worked out"),
    ("big", "large", "huge"), ("bigger", "larger"), ("small", "little"),
    ("fast", "quick", "speedy"), ("faster", "quicker", "speedier"), ("slow", "sluggish"),
    ("begin", "start"), ("show", "display", "print"),
    ("make", "create", "build", "produce"), ("made", "created", "built", "produced"),
    ("need", "require"), ("needs", "requires"), ("needed", "required", "necessary"),
    ("use", "employ", "utilize", "apply"), ("used", "employed", "utilized", "applied"),
    ("choose", "select", "pick"), ("chosen", "selected", "picked"),
    ("keep", "hold", "store"), ("kept", "held", "stored"),
    ("important", "crucial", "essential"), ("different", "distinct"), ("same", "identical"),
    ("good", "sensible", "decent"), ("best", "ideal", "optimal"), ("bad", "poor", "harmful"),
    ("happens", "goes on", "occurs"), ("work", "function", "operate"),
    ("works", "functions", "operates"),
    ("give", "provide"), ("tell", "inform"), ("called", "named"),
    ("usually", "normally", "typically"), ("quickly", "rapidly", "briefly"), ("help", "assist"),
    ("change", "alter", "modify"), ("set", "configure", "adjust"), ("whole", "entire", "complete"),
    ("a lot of", "many", "lots of", "plenty of"), ("get", "obtain", "receive"),
    ("when", "at what point", "at which time"), ("where", "in which place", "at what place"),
)  # fmt: skip
_GROUPS = {way: group for group in SAME for way in group}
_LONGEST_FIRST = sorted(_GROUPS, key=len, reverse=True)
_SAME = re.compile(
    rf"(?<![\w-])(?:{'|'.join(map(re.escape, _LONGEST_FIRST))})(?![\w-])", re.IGNORECASE
)


def reword(text: str, rng: random.Random) -> str:
    """Return `text` with one or two phrases replaced by synonyms in `SAME`."""
    found = [match for match in _SAME.finditer(text) if match[0].lower() in _GROUPS]
    chosen = rng.sample(found, min(len(found), rng.choice((1, 1, 2))))
    for match in sorted(chosen, key=re.Match.start, reverse=True):
        other = rng.choice([way for way in _GROUPS[match[0].lower()] if way != match[0].lower()])
        text = text[: match.start()] + other + text[match.end() :]
    return text


OPENINGS = (
    "hey, ", "hi, ", "hello, ", "hi there, ", "ok, ", "okay so ", "so ", "well, ", "please ",
    "please tell me: ", "um, ", "quick question: ", "question: ", "one question: ",
    "I have a question: ", "can you tell me ", "could you tell me ", "tell me, ", "do you know ",
    "I wonder, ", "I want to know: ", "help me understand: ", "in short: ", "and ", "also, ",
)  # fmt: skip
CLOSINGS = (
    " please", ", please", " pls", " thanks", ", thanks", " thank you", " exactly", " in short",
    " briefly", " in simple words", " again", " here", " for a beginner", ", do you know",
    ", can you explain", " :)", " right", " then", " actually",
)  # fmt: skip
ENDINGS = {"?": 6, "": 6, "??": 1, ".": 2, "!": 1, " ?": 1, "...": 1}
"""Endings of a question, and their weights."""
DROPPABLE = frozenset((
    "the", "a", "an", "is", "are", "do", "does", "of", "in", "to", "it", "this", "that", "i",
    "me", "you",
))  # fmt: skip
NEIGHBORS = {
    "q": "wa", "w": "qes", "e": "wrd", "r": "etf", "t": "ryg", "y": "tuh", "u": "yij", "i": "uok",
    "o": "ipl", "p": "ol", "a": "sqz", "s": "adw", "d": "sfe", "f": "dgr", "g": "fht", "h": "gjy",
    "j": "hku", "k": "jli", "l": "ko", "z": "xa", "x": "zcs", "c": "xvd", "v": "cbf", "b": "vng",
    "n": "bmh", "m": "nj",
}  # fmt: skip
"""The keys beside each key of a keyboard, for typos."""


def vary(text: str, rng: random.Random) -> str:
    """Return a variant of `text` with synonyms and typos; one time in four `text` itself.

    Draws from `rng`, so that the same state gives the same variation.
    """
    if rng.random() < 0.25:
        return text
    if rng.random() < 0.35:
        text = reword(text, rng)
    if rng.random() < 0.12:
        text = _drop_words(text, rng)
    if rng.random() < 0.22:
        text = _typos(text, rng)
    bare = text.rstrip(" ?.!")
    ending = text[len(bare) :]
    if rng.random() >= 0.5:
        ending = rng.choices(list(ENDINGS), list(ENDINGS.values()))[0]
    if rng.random() < 0.12:
        # "What is" becomes "what is", but "KV cache" and "I want" stay as they are.
        rest = bare[0].lower() + bare[1:] if bare[1:2].islower() else bare
        bare = rng.choice(OPENINGS) + rest
    if rng.random() < 0.07:
        bare += rng.choice(CLOSINGS)
    return _case(_punctuation(bare, rng) + ending, rng).strip() or text


def _case(text: str, rng: random.Random) -> str:
    draw = rng.random()
    if draw < 0.40:
        return text.lower()
    if draw < 0.43:
        return text.upper()
    if draw < 0.55:
        return text[:1].upper() + text[1:]
    return text


def _punctuation(text: str, rng: random.Random) -> str:
    draw = rng.random()
    if draw < 0.15:
        return re.sub(r"[,;:'\"!?](?=\s|$)", "", text)
    if draw < 0.22:
        return re.sub(r"(?<=[A-Za-z])-(?=[A-Za-z])", " ", text)
    return text


def _drop_words(text: str, rng: random.Random) -> str:
    words = text.split()
    kept = [word for word in words if word.lower() not in DROPPABLE or rng.random() < 0.4]
    return " ".join(kept) if len(kept) >= 2 else text


def _typos(text: str, rng: random.Random) -> str:
    words = text.split(" ")
    long = [
        place
        for place, word in enumerate(words)
        if len(word) >= 5 and word.isascii() and word.isalpha()
    ]
    for place in rng.sample(long, min(len(long), rng.choice((1, 1, 2)))):
        words[place] = _typo(words[place], rng)
    return " ".join(words)


def _typo(word: str, rng: random.Random) -> str:
    at = rng.randrange(1, len(word) - 1)
    kind = rng.randrange(5)
    if kind <= 1:  # two letters change places, the commonest slip
        return word[:at] + word[at + 1] + word[at] + word[at + 2 :]
    if kind == 2:  # one is left out
        return word[:at] + word[at + 1 :]
    if kind == 3:  # one is there twice
        return word[:at] + word[at] + word[at:]
    key = word[at].lower()  # the key beside it
    return word[:at] + rng.choice(NEIGHBORS.get(key, string.ascii_lowercase)) + word[at + 1 :]
