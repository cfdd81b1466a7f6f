"""The recurrent layers of a hybrid model such as Qwen3.5: which layers, and their sizes."""

from dataclasses import dataclass

from tinyllm_qwen.config.fields import Fields

KERNEL = 4
"""The number of weights per channel of the convolution in all published models."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recurrent:
    """The layers with gated DeltaNet instead of attention.

    Attributes:
        layers: the numbers of the recurrent layers. The other layers have attention.
        num_key_heads: the number of heads of queries and keys, Hk.
        num_value_heads: the number of heads of values, Hv, a multiple of Hk.
        key_dim: the size of a key head, Dk.
        value_dim: the size of a value head, Dv.
        kernel: the number of weights per channel of the convolution, K.
        joint: True if files store all projections of the input in two matrices (Qwen3-Next); see
            `checkpoint/joint_projections.py`.
    """

    layers: frozenset[int]
    num_key_heads: int
    num_value_heads: int
    key_dim: int
    value_dim: int
    kernel: int = KERNEL
    joint: bool = False

    @property
    def values_per_key(self) -> int:
        """The number of value heads that share a key head, Hv / Hk."""
        return self.num_value_heads // self.num_key_heads

    @property
    def channels(self) -> int:
        """The number of channels of the convolution, C = 2 Hk*Dk + Hv*Dv."""
        return 2 * self.key_width + self.value_width

    @property
    def key_width(self) -> int:
        """The number of features of all key heads, Hk*Dk."""
        return self.num_key_heads * self.key_dim

    @property
    def value_width(self) -> int:
        """The number of features of all value heads, Hv*Dv."""
        return self.num_value_heads * self.value_dim

    @classmethod
    def from_hf(cls, fields: Fields, num_hidden_layers: int, *, joint: bool = False) -> "Recurrent":
        """Read the fields `linear_*`, and `layer_types` or `full_attention_interval`.

        Args:
            fields: the config.
            num_hidden_layers: the number of layers.
            joint: the attribute `joint`, which follows from the type of the model.

        Raises:
            CheckpointError: if a field is missing, out of range, or not implemented.
        """
        key_heads = fields.integer("linear_num_key_heads", 1, 1 << 14)
        value_heads = fields.integer("linear_num_value_heads", 1, 1 << 14)
        if value_heads % key_heads:
            raise fields.error(
                "linear_num_value_heads", f"a multiple of linear_num_key_heads ({key_heads})"
            )
        kernel = fields.integer("linear_conv_kernel_dim", 1, 1 << 10, default=KERNEL)
        if kernel != KERNEL:
            raise fields.error("linear_conv_kernel_dim", f"{KERNEL}, as all published models have")
        interval = fields.integer("full_attention_interval", 1, 1024, default=4)
        layers = fields.layers_of("linear_attention", "full_attention", num_hidden_layers)
        if layers is None:
            layers = frozenset(i for i in range(num_hidden_layers) if (i + 1) % interval)
        return cls(
            layers=layers,
            num_key_heads=key_heads,
            num_value_heads=value_heads,
            key_dim=fields.integer("linear_key_head_dim", 1, 1 << 12),
            value_dim=fields.integer("linear_value_head_dim", 1, 1 << 12),
            kernel=kernel,
            joint=joint,
        )
