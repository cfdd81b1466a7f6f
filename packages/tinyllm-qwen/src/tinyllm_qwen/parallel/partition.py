"""The part of a model that one of several processes holds."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from tinyllm_qwen.config.quantization import PackedFormat
from tinyllm_qwen.config.qwen import QwenConfig

_QUERIES = ("q_proj",)
_KEYS = ("k_proj", "v_proj")
_EXPERTS = ".switch_mlp."


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """The part of one rank: heads, columns of the MLP, experts, tokens of the vocabulary.

    Query heads stay with their key/value head. If there are fewer key/value heads than ranks,
    several ranks have the same key/value head and share its query heads. Parts may differ by one
    unit: a head, an expert, or a group of a quantized matrix that is cut along its columns. Groups
    are not cut, because a group has one scale.

    Attributes:
        rank: the number of the process.
        size: the number of processes.
        heads: query heads.
        kv_heads: key/value heads.
        mlp: columns of the MLP's width F.
        experts: experts of MoE layers; None for all, or if there are none.
        vocabulary: tokens, rows of the embedding and of the head.
        layers: decoder layers.
        by_layers: True if each rank has whole layers, False if it has a part of every layer.
    """

    rank: int
    size: int
    heads: range
    kv_heads: range
    mlp: range
    experts: range | None
    vocabulary: range
    layers: range
    by_layers: bool = False

    @classmethod
    def whole(cls, config: QwenConfig) -> "Partition":
        """Return the whole model as the part of one process."""
        return cls(
            rank=0,
            size=1,
            heads=range(config.num_attention_heads),
            kv_heads=range(config.num_key_value_heads),
            mlp=range(config.intermediate_size),
            experts=None,
            vocabulary=range(config.vocab_size),
            layers=range(config.num_hidden_layers),
        )

    @classmethod
    def of(
        cls, config: QwenConfig, formats: Mapping[str, PackedFormat], rank: int, size: int
    ) -> "Partition":
        """Divide a model.

        Args:
            config: the architecture of the whole model.
            formats: the formats of packed matrices, by module path.
            rank: the number of the process.
            size: the number of processes.

        Raises:
            ValueError: if there are fewer units of heads, columns, experts or tokens than ranks.
        """
        heads, kv_heads = _heads(config, _group(formats, "o_proj"), rank, size)
        experts = config.experts
        dense = experts is None or len(experts.layers) < config.num_hidden_layers
        mlp = range(config.intermediate_size)
        if dense:
            mlp = _share("columns of the MLP", mlp.stop, _group(formats, "down_proj"), rank, size)
        return cls(
            rank=rank,
            size=size,
            heads=heads,
            kv_heads=kv_heads,
            mlp=mlp,
            experts=None
            if experts is None
            else _share("experts", experts.num_experts, 1, rank, size),
            vocabulary=_rows(config.vocab_size, rank, size),
            layers=range(config.num_hidden_layers),
        )

    @classmethod
    def stage(
        cls, config: QwenConfig, rank: int, size: int, layers: Sequence[int] = ()
    ) -> "Partition":
        """Divide the decoder layers (pipeline parallelism), and the vocabulary as `of` does.

        Args:
            config: the whole model.
            rank: the number of the process.
            size: the number of processes.
            layers: layers of each rank; empty to divide them evenly.

        Raises:
            ValueError: if `layers` are not one number from 1 on for each rank that add up to all
                layers, or there are fewer layers than ranks.
        """
        total = config.num_hidden_layers
        if layers:
            if len(layers) != size or sum(layers) != total or min(layers) < 1:
                raise ValueError(
                    f"split: expected a number of layers for each of {size} ranks, {total} in "
                    f"total, got {','.join(map(str, layers))}"
                )
            start, stop = [0, *accumulate(layers)][rank : rank + 2]
            own = range(start, stop)
        else:
            own = _share("layers", total, 1, rank, size)
        return replace(
            cls.whole(config),
            rank=rank,
            size=size,
            vocabulary=_rows(config.vocab_size, rank, size),
            layers=own,
            by_layers=True,
        )

    def local(self, config: QwenConfig) -> QwenConfig:
        """Return the architecture of this part as a model: its numbers of heads and its width."""
        return replace(
            config,
            num_attention_heads=len(self.heads),
            num_key_value_heads=len(self.kv_heads),
            intermediate_size=len(self.mlp),
        )

    def slices(
        self, name: str, shape: tuple[int, ...], config: QwenConfig
    ) -> tuple[range, ...] | None:
        """Return the part of a tensor that this rank needs: a range for each axis.

        Args:
            name: the tensor's Hugging Face name, less "model.". Scales and biases of a packed
                matrix are cut like the matrix.
            shape: the shape of the stored tensor.
            config: the whole model.

        Returns:
            None if this rank has no part of the tensor.
        """
        whole = tuple(range(size) for size in shape)
        if self.by_layers and name.startswith("layers."):
            return whole if int(name.split(".")[1]) in self.layers else None
        path, _, kind = name.rpartition(".")
        module = path.rpartition(".")[2]
        if module == "o_proj" and kind == "bias":  # added once, not by every rank
            return whole if self.rank == 0 else None
        if _EXPERTS in name:
            return whole if self.experts is None else (self.experts, *whole[1:])
        rows = self._output(module, config)
        if rows is not None:
            return (rows, *whole[1:])
        columns = self._input(module, config)
        if columns is None:
            return whole
        part, total = columns
        # Columns of codes are words and columns of scales are groups, in proportion to numbers.
        start, stop = (edge * shape[-1] // total for edge in (part.start, part.stop))
        return (*whole[:-1], range(start, stop))

    def _output(self, module: str, config: QwenConfig) -> range | None:
        """Return the rows of a matrix that is cut by its output, or None."""
        if module in ("embed_tokens", "lm_head"):
            return self.vocabulary
        if module in ("gate_proj", "up_proj"):
            return self.mlp
        if module in _QUERIES:
            return _scaled(self.heads, config.head_dim)
        return _scaled(self.kv_heads, config.head_dim) if module in _KEYS else None

    def _input(self, module: str, config: QwenConfig) -> tuple[range, int] | None:
        """Return the columns of a matrix that is cut by its input and their total, or None."""
        if module == "o_proj":
            head_dim = config.head_dim
            return _scaled(self.heads, head_dim), config.num_attention_heads * head_dim
        return (self.mlp, config.intermediate_size) if module == "down_proj" else None


def _heads(config: QwenConfig, group: int, rank: int, size: int) -> tuple[range, range]:
    """Return the query heads of a rank, and the key/value heads that they attend to."""
    kv_heads = config.num_key_value_heads
    per_kv = config.num_attention_heads // kv_heads  # H/Hkv
    unit = group // math.gcd(group, per_kv * config.head_dim)
    if kv_heads // unit >= size:
        kv = _share("key/value heads", kv_heads, unit, rank, size)
        return _scaled(kv, per_kv), kv
    if size < kv_heads:
        raise ValueError(_too_few("key/value heads", kv_heads, unit, size))
    holders = [_share("ranks", size, 1, kv, kv_heads) for kv in range(kv_heads)]
    head, ranks = next((head, ranks) for head, ranks in enumerate(holders) if rank in ranks)
    unit = group // math.gcd(group, config.head_dim)
    own = _share("query heads of one key/value head", per_kv, unit, rank - ranks.start, len(ranks))
    return range(head * per_kv + own.start, head * per_kv + own.stop), range(head, head + 1)


def _share(what: str, total: int, unit: int, rank: int, size: int) -> range:
    """Return part `rank` of `size` of a range that is divided in units."""
    units, rest = divmod(total, unit)
    if units < size or rest:
        raise ValueError(_too_few(what, total, unit, size))
    each, more = divmod(units, size)
    start = rank * each + min(rank, more)
    return range(start * unit, (start + each + (rank < more)) * unit)


def _rows(total: int, rank: int, size: int) -> range:
    """Return part `rank` of the vocabulary. All parts but the last are equally long."""
    each = -(-total // size)
    if (size - 1) * each >= total:
        raise ValueError(_too_few("tokens of the vocabulary", total, 1, size))
    return range(rank * each, min(total, (rank + 1) * each))


def _scaled(part: range, factor: int) -> range:
    """Return the rows or columns of a range of heads."""
    return range(part.start * factor, part.stop * factor)


def _group(formats: Mapping[str, PackedFormat], module: str) -> int:
    """Return the group size of the matrices of a name; 1 if none is packed."""
    groups: Iterable[int] = (
        packed.group_size
        for path, packed in formats.items()
        if path.endswith(f".{module}") and _EXPERTS not in path
    )
    return math.lcm(*groups)


def _too_few(what: str, total: int, unit: int, size: int) -> str:
    units = f" in units of {unit}, because quantized groups stay whole" if unit > 1 else ""
    return f"group: {total} {what}{units} cannot be divided among {size} ranks: use fewer ranks"
