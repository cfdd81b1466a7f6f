"""Tokens: pico's byte-level BPE and chat template, as Qwen3 has them, and dialogues as ids."""

import json
from collections.abc import Iterable
from pathlib import Path

from dialogue import Dialogue
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import PreTrainedTokenizerFast

VOCABULARY = 2048
END_OF_TEXT, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CONTROL = (END_OF_TEXT, START, END)
TEXTUAL = ("<tool_call>", "</tool_call>", "<think>", "</think>")
TEMPLATE = Path(__file__).with_name("chat_template.jinja")
# Qwen's pre-tokenization.
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"  # contractions
    r"|[^\r\n\p{L}\p{N}]?\p{L}+"  # words, with one space or mark before them
    r"|\p{N}"  # single digits
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*"  # marks
    r"|\s*[\r\n]+"  # line ends
    r"|\s+(?!\S)"  # spaces, except the last space before a word
    r"|\s+"
)


def train(texts: Iterable[str], folder: Path) -> "ChatTokens":
    """Train the BPE on `texts` and write it to `folder`, in the files that transformers reads."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    added = len(CONTROL) + len(TEXTUAL)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - added,
        min_frequency=2,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in CONTROL]
    )
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in TEXTUAL])

    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END,
        "pad_token": END_OF_TEXT,
        "bos_token": None,
        "unk_token": None,
        "model_max_length": 2048,
        "clean_up_tokenization_spaces": False,
        "added_tokens_decoder": {
            str(tokenizer.token_to_id(token)): {
                "content": token,
                "lstrip": False,
                "normalized": False,
                "rstrip": False,
                "single_word": False,
                "special": token in CONTROL,
            }
            for token in CONTROL + TEXTUAL
        },
        "chat_template": TEMPLATE.read_text("utf-8").removesuffix("\n"),
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
    return ChatTokens(folder)


class ChatTokens:
    """The tokenizer of `folder`, with dialogues as ids.

    Attributes:
        folder: the folder that the tokenizer was read from.
        tokenizer: the tokenizer itself.
        size: ids in use, rounded up to a multiple of 64: the rows of the embedding.
        start: id of `<|im_start|>`, which begins a message.
        end: id of `<|im_end|>`, which ends an answer.
        pad: id of `<|endoftext|>`.
    """

    def __init__(self, folder: Path) -> None:
        """Read the tokenizer that `train` wrote to `folder`."""
        self.folder = folder
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.size = -(-self.tokenizer.get_vocab_size() // 64) * 64
        self.start = self.tokenizer.token_to_id(START)
        self.end = self.tokenizer.token_to_id(END)
        self.pad = self.tokenizer.token_to_id(END_OF_TEXT)
        self._cache: dict[str, list[int]] = {}

    def encode(self, dialogue: Dialogue) -> tuple[list[int], list[bool]]:
        """Return the ids of the rendered dialogue, and True for each id that pico has to generate.

        Pico generates the answers, each with its `<|im_end|>`. Messages are encoded one by one, so
        that an answer is encoded only once. `check` compares the result with the template.
        """
        ids: list[int] = []
        is_target: list[bool] = []
        for message in dialogue.messages():
            generated = message["role"] == "assistant"
            head = [self.start, *self._ids(message["role"] + "\n")]
            body = [*self._ids(message["content"].strip()), self.end]
            ids += head + body + self._ids("\n")  # type: ignore[arg-type]
            is_target += [False] * len(head) + [generated] * len(body) + [False]
        return ids, is_target

    def check(self, dialogues: Iterable[Dialogue]) -> None:
        """Compare `encode` with the ids of the text that the chat template renders.

        Raises:
            ValueError: they differ, naming the text.
        """
        fast = PreTrainedTokenizerFast.from_pretrained(str(self.folder))
        for dialogue in dialogues:
            text = fast.apply_chat_template(dialogue.messages(), tokenize=False)
            expected, actual = self.tokenizer.encode(text).ids, self.encode(dialogue)[0]
            if expected != actual or fast(text)["input_ids"] != actual:
                raise ValueError(
                    f"chat template and training text differ on {text!r}: "
                    f"expected {expected}, got {actual}"
                )

    def _ids(self, text: str) -> list[int]:
        if text not in self._cache:
            self._cache[text] = self.tokenizer.encode(text).ids
        return self._cache[text]
