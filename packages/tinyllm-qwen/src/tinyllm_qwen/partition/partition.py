"""The partition of a model: the part that one of several processes has."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain

from tinyllm_qwen.config.quantization import PackedFormat
from tinyllm_qwen.config.qwen import QwenConfig
from tinyllm_qwen.config.recurrent import Recurrent

_EXPERTS = ".switch_mlp."
_SHARED_EXPERT = ".shared_expert."


@dataclass(frozen=True, slots=True)
class Segments:
    """Several ranges of the first axis of a tensor, which are read one after the other."""

    ranges: tuple[range, ...]

    def __len__(self) -> int:
        """Return the number of all indices."""
        return sum(map(len, self.ranges))

    def __iter__(self) -> Iterator[int]:
        """Yield the indices in the order in which they are read."""
        return chain.from_iterable(self.ranges)


Slices = tuple[range | Segments, ...]
"""A slice of a tensor: the indices of each axis. Only the first axis can have `Segments`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """The heads, hidden features, experts, tokens and layers that one rank has.

    A rank has all key/value heads of its query heads. If there are fewer key/value heads than
    ranks, several ranks have the same key/value head and divide its query heads. The parts of the
    MLP and of the experts differ by at most one unit: a column, an expert, or a group of a
    quantized matrix, which is not divided, because it has one scale. Query heads differ by more if
    key/value heads cannot be divided evenly: of 2 on 3 ranks, the third rank has one alone.

    A recurrent layer is divided by key heads. A rank has all value heads of its key heads.

    Attributes:
        rank: the number of the process.
        heads: the numbers of the query heads.
        kv_heads: the numbers of the key/value heads.
        mlp: the indices of the hidden features of the MLP, within 0 to F.
        experts: the numbers of the experts of MoE layers; None for all, or if there are none.
        shared_expert: the indices of the hidden features of the shared expert.
        key_heads: the numbers of the key heads of recurrent layers.
        value_heads: the numbers of the value heads of recurrent layers.
        vocabulary: the ids of the tokens, which are rows of the embedding and of the head.
        layers: the numbers of the decoder layers.
        by_layers: True if each rank has whole layers, False if it has a part of every layer.
    """

    rank: int
    heads: range
    kv_heads: range
    mlp: range
    experts: range | None
    shared_expert: range
    key_heads: range
    value_heads: range
    vocabulary: range
    layers: range
    by_layers: bool = False

    @classmethod
    def whole(cls, config: QwenConfig) -> "Partition":
        """Return the partition of a single process, which has the whole model."""
        recurrent = config.recurrent
        return cls(
            rank=0,
            heads=range(config.num_attention_heads),
            kv_heads=range(config.num_key_value_heads),
            mlp=range(config.intermediate_size),
            experts=None,
            shared_expert=range(_shared_size(config)),
            key_heads=range(0 if recurrent is None else recurrent.num_key_heads),
            value_heads=range(0 if recurrent is None else recurrent.num_value_heads),
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
            ValueError: if there are fewer units of heads, columns, experts or tokens than ranks, or
                their number is not a multiple of a quantized group.
        """
        heads, kv_heads = _heads(config, _group_size(formats, "o_proj"), rank, size)
        experts, recurrent = config.experts, config.recurrent
        key_heads = value_heads = shared = range(0)
        if recurrent is not None:
            group = _group_size(formats, "out_proj")
            key_heads, value_heads = _recurrent_heads(recurrent, group, rank, size)
        if _shared_size(config):
            group = _group_size(formats, "shared_expert.down_proj")
            name = "columns of the shared expert"
            shared = _share(name, _shared_size(config), group, rank, size)
        dense = experts is None or len(experts.layers) < config.num_hidden_layers
        mlp = range(config.intermediate_size)
        if dense:
            mlp = _share(
                "columns of the MLP", mlp.stop, _group_size(formats, "down_proj"), rank, size
            )
        return cls(
            rank=rank,
            heads=heads,
            kv_heads=kv_heads,
            mlp=mlp,
            experts=None
            if experts is None
            else _share("experts", experts.num_experts, 1, rank, size),
            shared_expert=shared,
            key_heads=key_heads,
            value_heads=value_heads,
            vocabulary=_vocabulary_part(config.vocab_size, rank, size),
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
            ValueError: if there are fewer layers than ranks, `layers` does not have one positive
                number for each rank with the number of all layers as the sum, or rank 0 would have
                no recurrent layer of a hybrid model.
        """
        total = config.num_hidden_layers
        if layers:
            if len(layers) != size or sum(layers) != total or min(layers) < 1:
                raise ValueError(
                    f"split: expected a number of layers for each of {size} ranks, {total} in "
                    f"total, got {','.join(map(str, layers))}"
                )
            start, stop = [0, *accumulate(layers)][rank : rank + 2]
            stage_layers = range(start, stop)
        else:
            stage_layers = _share("layers", total, 1, rank, size)
        recurrent = config.recurrent
        # Rank 0 decides to which length all ranks trim their caches. A recurrent layer can be
        # trimmed to few lengths, which rank 0 knows only if it has one.
        if rank == 0 and recurrent is not None and not recurrent.layers.intersection(stage_layers):
            raise ValueError(
                "split: expected a recurrent layer on rank 0, got the attention layers "
                f"{list(stage_layers)}: give rank 0 more layers"
            )
        return replace(
            cls.whole(config),
            rank=rank,
            vocabulary=_vocabulary_part(config.vocab_size, rank, size),
            layers=stage_layers,
            by_layers=True,
        )

    def local_recurrent(self, recurrent: Recurrent) -> Recurrent:
        """Return the sizes of recurrent layers with the heads of this partition."""
        return replace(
            recurrent,
            num_key_heads=len(self.key_heads),
            num_value_heads=len(self.value_heads),
        )

    def slices(self, name: str, shape: tuple[int, ...], config: QwenConfig) -> Slices | None:
        """Return the slice of a stored tensor that this rank needs.

        Args:
            name: the Hugging Face name of the tensor without "model.". Scales and biases of a
                packed matrix are divided like the matrix.
            shape: the shape of the stored tensor.
            config: the architecture of the whole model.

        Returns:
            The indices of each axis, or None if this rank does not need the tensor.
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
        rows = self._rows(name, config).get(module)
        if rows is not None:
            return (rows, *whole[1:])
        if module not in (columns := self._columns(name, config)):
            return whole
        part, total = columns[module]
        # Packed codes have fewer columns (words) and scales have one column per group. Scale the
        # range of the decoded matrix to the columns that are stored.
        start, stop = (edge * shape[-1] // total for edge in (part.start, part.stop))
        return (*whole[:-1], range(start, stop))

    def _rows(self, name: str, config: QwenConfig) -> dict[str, range | Segments]:
        """Return the rows of the tensors that are divided by rows, by module.

        The modules are those of the layer of the tensor `name`.
        """
        hidden = self.shared_expert if _SHARED_EXPERT in name else self.mlp
        kv = _scaled(self.kv_heads, config.head_dim)
        rows: dict[str, range | Segments] = {
            "embed_tokens": self.vocabulary,
            "lm_head": self.vocabulary,
            "gate_proj": hidden,
            "up_proj": hidden,
            # Each head has the rows of its query, then of its output gate.
            "q_proj": _scaled(self.heads, config.head_dim * (2 if config.output_gate else 1)),
            "k_proj": kv,
            "v_proj": kv,
        }
        recurrent = config.recurrent
        if recurrent is None:
            return rows
        keys, width = _scaled(self.key_heads, recurrent.key_dim), recurrent.key_width
        values = _scaled(self.value_heads, recurrent.value_dim)
        qkv = Segments((keys, _shifted(keys, width), _shifted(values, 2 * width)))
        shared = recurrent.values_per_key
        head = 2 * recurrent.key_dim + 2 * shared * recurrent.value_dim  # rows of q, k, v and z
        return rows | {
            "in_proj_qkv": qkv,
            "conv1d": qkv,
            "in_proj_z": values,
            "in_proj_qkvz": _scaled(self.key_heads, head),
            "in_proj_ba": _scaled(self.key_heads, 2 * shared),
            "in_proj_b": self.value_heads,
            "in_proj_a": self.value_heads,
            "linear_attn": self.value_heads,  # A_log and dt_bias, which belong to the layer itself
        }

    def _columns(self, name: str, config: QwenConfig) -> dict[str, tuple[range, int]]:
        """Return the columns, and the number of all columns, of matrices divided by columns.

        The modules are those of the layer of the tensor `name`.
        """
        mlp = (self.mlp, config.intermediate_size)
        if _SHARED_EXPERT in name:
            mlp = (self.shared_expert, _shared_size(config))
        columns = {
            "o_proj": (
                _scaled(self.heads, config.head_dim),
                config.num_attention_heads * config.head_dim,
            ),
            "down_proj": mlp,
        }
        recurrent = config.recurrent
        if recurrent is not None:
            values = _scaled(self.value_heads, recurrent.value_dim)
            columns["out_proj"] = (values, recurrent.value_width)
        return columns


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
        raise ValueError(_indivisible("key/value heads", kv_heads, unit, size))
    # One or more ranks divide the query heads of each key/value head.
    holders = [_share("ranks", size, 1, kv, kv_heads) for kv in range(kv_heads)]
    head, ranks = next((head, ranks) for head, ranks in enumerate(holders) if rank in ranks)
    unit = group // math.gcd(group, config.head_dim)
    query_heads = _share(
        "query heads of one key/value head", per_kv, unit, rank - ranks.start, len(ranks)
    )
    return range(head * per_kv + query_heads.start, head * per_kv + query_heads.stop), range(
        head, head + 1
    )


def _recurrent_heads(recurrent: Recurrent, group: int, rank: int, size: int) -> tuple[range, range]:
    """Return the key heads of a rank in recurrent layers, and the value heads of these heads."""
    per_key = recurrent.values_per_key
    # The fewest key heads whose columns of out_proj are whole quantization groups.
    unit = group // math.gcd(group, per_key * recurrent.value_dim)
    name = "key heads of recurrent layers"
    keys = _share(name, recurrent.num_key_heads, unit, rank, size)
    return keys, _scaled(keys, per_key)


def _share(name: str, total: int, unit: int, rank: int, size: int) -> range:
    """Divide `range(total)`, in multiples of `unit`, between `size` ranks; return one part.

    The parts differ by at most one unit.
    """
    units, rest = divmod(total, unit)
    if units < size or rest:
        raise ValueError(_indivisible(name, total, unit, size))
    each, more = divmod(units, size)
    start = rank * each + min(rank, more)
    return range(start * unit, (start + each + (rank < more)) * unit)


def _vocabulary_part(total: int, rank: int, size: int) -> range:
    """Return the token ids of a rank. All ranks but the last have equally many."""
    each = -(-total // size)
    if (size - 1) * each >= total:
        raise ValueError(_indivisible("tokens of the vocabulary", total, 1, size))
    return range(rank * each, min(total, (rank + 1) * each))


def _scaled(part: range, factor: int) -> range:
    """Return the rows, columns or query heads of the heads in `part`, `factor` for each head."""
    return range(part.start * factor, part.stop * factor)


def _shifted(part: range, offset: int) -> range:
    """Return the range `offset` indices later."""
    return range(part.start + offset, part.stop + offset)


def _shared_size(config: QwenConfig) -> int:
    """Return the number of hidden features of the shared expert; 0 if there is none."""
    return 0 if config.experts is None else config.experts.shared_size


def _group_size(formats: Mapping[str, PackedFormat], module: str) -> int:
    """Return a common multiple of the group sizes of all matrices `module`; 1 if none is packed."""
    groups: Iterable[int] = (
        packed.group_size
        for path, packed in formats.items()
        if path.endswith(f".{module}") and _EXPERTS not in path
    )
    return math.lcm(*groups)


def _indivisible(what: str, total: int, unit: int, size: int) -> str:
    units = f" in units of {unit}, because quantized groups stay whole" if unit > 1 else ""
    return f"group: {total} {what}{units} cannot be divided among {size} ranks: use fewer ranks"
