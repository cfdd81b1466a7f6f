"""The partition of a model: the part that one of several processes has."""

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
    """The heads, hidden features, experts, tokens and layers that one rank has.

    A rank has all key/value heads of its query heads. If there are fewer key/value heads than
    ranks, several ranks have the same key/value head and divide its query heads. The partitions of
    two ranks may differ in size by one unit: a head, an expert, or a group of a quantized matrix
    that is divided along its columns. A group is not divided, because it has one scale.

    Attributes:
        rank: the number of the process.
        size: the number of processes.
        heads: the numbers of the query heads.
        kv_heads: the numbers of the key/value heads.
        mlp: the indices of the hidden features of the MLP, within 0 to F.
        experts: the numbers of the experts of MoE layers; None for all, or if there are none.
        vocabulary: the ids of the tokens, which are rows of the embedding and of the head.
        layers: the numbers of the decoder layers.
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
        """Return the partition of a single process, which has the whole model."""
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
        """Return the partition of a rank that has a part of every layer (tensor parallelism).

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
        """Return the partition of a rank that has whole layers (pipeline parallelism).

        The vocabulary is divided as in `of`.

        Args:
            config: the architecture of the whole model.
            rank: the number of the process.
            size: the number of processes.
            layers: the number of layers of each rank; empty to divide the layers evenly.

        Raises:
            ValueError: if there are fewer layers than ranks, or `layers` does not have one positive
                number for each rank with the number of all layers as the sum.
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
        """Return the config with the numbers of heads and of hidden features of this partition."""
        return replace(
            config,
            num_attention_heads=len(self.heads),
            num_key_value_heads=len(self.kv_heads),
            intermediate_size=len(self.mlp),
        )

    def slices(
        self, name: str, shape: tuple[int, ...], config: QwenConfig
    ) -> tuple[range, ...] | None:
        """Return the slice of a stored tensor that this rank needs.

        Args:
            name: the Hugging Face name of the tensor without "model.". Scales and biases of a
                packed matrix are divided like the matrix.
            shape: the shape of the stored tensor.
            config: the architecture of the whole model.

        Returns:
            A range for each axis, or None if this rank does not need the tensor.
        """
        whole = tuple(range(size) for size in shape)
        if self.by_layers and name.startswith("layers."):
            return whole if int(name.split(".")[1]) in self.layers else None
        path, _, kind = name.rpartition(".")
        module = path.rpartition(".")[2]
        if module == "o_proj" and kind == "bias":  # rank 0 alone adds the bias
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
        # Packed codes have fewer columns (words) and scales have one column per group. Scale the
        # range of the decoded matrix to the columns that are stored.
        start, stop = (edge * shape[-1] // total for edge in (part.start, part.stop))
        return (*whole[:-1], range(start, stop))

    def _output(self, module: str, config: QwenConfig) -> range | None:
        """Return the rows of a matrix that is divided by rows; None for other tensors."""
        if module in ("embed_tokens", "lm_head"):
            return self.vocabulary
        if module in ("gate_proj", "up_proj"):
            return self.mlp
        if module in _QUERIES:
            return _scaled(self.heads, config.head_dim)
        return _scaled(self.kv_heads, config.head_dim) if module in _KEYS else None

    def _input(self, module: str, config: QwenConfig) -> tuple[range, int] | None:
        """Return the columns of a matrix that is divided by columns, and the number of all columns.

        The result is None for other tensors.
        """
        if module == "o_proj":
            head_dim = config.head_dim
            return _scaled(self.heads, head_dim), config.num_attention_heads * head_dim
        return (self.mlp, config.intermediate_size) if module == "down_proj" else None


def _heads(config: QwenConfig, group: int, rank: int, size: int) -> tuple[range, range]:
    """Return the query heads of a rank, and the key/value heads of these query heads."""
    kv_heads = config.num_key_value_heads
    per_kv = config.num_attention_heads // kv_heads  # H/Hkv
    # The fewest key/value heads whose columns of o_proj are whole quantization groups.
    unit = group // math.gcd(group, per_kv * config.head_dim)
    if kv_heads // unit >= size:
        kv = _share("key/value heads", kv_heads, unit, rank, size)
        return _scaled(kv, per_kv), kv
    if size < kv_heads:
        raise ValueError(_too_few("key/value heads", kv_heads, unit, size))
    # One or more ranks divide the query heads of each key/value head.
    holders = [_share("ranks", size, 1, kv, kv_heads) for kv in range(kv_heads)]
    head, ranks = next((head, ranks) for head, ranks in enumerate(holders) if rank in ranks)
    unit = group // math.gcd(group, config.head_dim)
    own = _share("query heads of one key/value head", per_kv, unit, rank - ranks.start, len(ranks))
    return range(head * per_kv + own.start, head * per_kv + own.stop), range(head, head + 1)


def _share(name: str, total: int, unit: int, rank: int, size: int) -> range:
    """Divide `range(total)`, in multiples of `unit`, between `size` ranks; return one part.

    The parts differ by at most one unit.
    """
    units, rest = divmod(total, unit)
    if units < size or rest:
        raise ValueError(_too_few(name, total, unit, size))
    each, more = divmod(units, size)
    start = rank * each + min(rank, more)
    return range(start * unit, (start + each + (rank < more)) * unit)


def _rows(total: int, rank: int, size: int) -> range:
    """Return the token ids of a rank. All ranks but the last have equally many."""
    each = -(-total // size)
    if (size - 1) * each >= total:
        raise ValueError(_too_few("tokens of the vocabulary", total, 1, size))
    return range(rank * each, min(total, (rank + 1) * each))


def _scaled(part: range, factor: int) -> range:
    """Return the rows, columns or query heads of the heads in `part`, `factor` for each head."""
    return range(part.start * factor, part.stop * factor)


def _group(formats: Mapping[str, PackedFormat], module: str) -> int:
    """Return a common multiple of the group sizes of all matrices `module`; 1 if none is packed."""
    groups: Iterable[int] = (
        packed.group_size
        for path, packed in formats.items()
        if path.endswith(f".{module}") and _EXPERTS not in path
    )
    return math.lcm(*groups)


def _too_few(what: str, total: int, unit: int, size: int) -> str:
    units = f" in units of {unit}, because quantized groups stay whole" if unit > 1 else ""
    return f"group: {total} {what}{units} cannot be divided among {size} ranks: use fewer ranks"
