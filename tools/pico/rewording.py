"""Rewording: words and frames that may stand for each other without changing what is asked."""

import random
import re

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
    """`text` with one or two of its words put in others that `SAME` holds for equal."""
    found = [match for match in _SAME.finditer(text) if match[0].lower() in _GROUPS]
    chosen = rng.sample(found, min(len(found), rng.choice((1, 1, 2))))
    for match in sorted(chosen, key=re.Match.start, reverse=True):
        other = rng.choice([way for way in _GROUPS[match[0].lower()] if way != match[0].lower()])
        text = text[: match.start()] + other + text[match.end() :]
    return text
