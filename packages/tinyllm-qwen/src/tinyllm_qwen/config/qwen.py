"""The architecture of a model, read from `config.json`. No other module decodes that file."""

from dataclasses import dataclass
from pathlib import Path

from tinyllm_ops import Yarn

from tinyllm_qwen.config.experts import Experts
from tinyllm_qwen.config.fields import Fields, show
from tinyllm_qwen.config.json_object import read_json_object
from tinyllm_qwen.config.model_type import (
    HYBRID,
    HYBRID_MOE,
    MOE,
    NESTED,
    QWEN2,
    ModelType,
    may_nest,
    read_model_type,
)
from tinyllm_qwen.config.quantization import Quantization
from tinyllm_qwen.config.recurrent import Recurrent
from tinyllm_qwen.config.rope import read_rope_scaling, read_rope_theta, read_rotary_dims
from tinyllm_qwen.config.sliding_window import SlidingWindow
from tinyllm_qwen.errors import CheckpointError

# Fields that may change the computation, with their neutral values. Other values are refused.
# A field that is neither in this table nor in `QwenConfig` is ignored: other fields of published
# Qwen models (use_cache, initializer_range, attention_dropout, bos_token_id, router_aux_loss_coef,
# transformers_version, ...) do not affect inference. If an unknown field implies an additional
# tensor, loading the weights refuses the tensor.
_NOT_IN_USE: dict[str, tuple[object, ...]] = {
    "attn_logit_softcapping": (),
    "embedding_multiplier": (1,),
    "final_logit_softcapping": (),
    "hidden_act": ("silu",),
    "logit_scale": (1,),
    "mlp_bias": (False,),
    "output_gate_type": ("silu", "swish"),  # of recurrent layers: two names of the same function
    "residual_multiplier": (1,),
    "rope_traditional": (False,),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class QwenConfig:
    """The architecture of a Qwen model from Qwen2 to Qwen3.8.

    Attributes:
        model_type: the type of the language model, without the suffix `_text`.
        vocab_size: the number of rows of the embedding, V. The tokenizer may have fewer tokens.
        hidden_size: the width of the model, E.
        num_hidden_layers: the number of decoder layers.
        intermediate_size: the number of hidden features of the MLP, F. In Qwen3-Next and
            Qwen3.5-MoE, whose layers all have experts, it is that of the shared expert.
        num_attention_heads: the number of query heads, H.
        num_key_value_heads: the number of key/value heads, Hkv, a divisor of H.
        head_dim: the size of a head, D, an even number. H * D need not equal E.
        max_position_embeddings: the context length in the config, in tokens; see `context_length`.
        rms_norm_eps: eps of every RMSNorm.
        rope_theta: base of the rotary frequencies.
        rope_scaling: settings of YaRN, for longer contexts; None for no scaling.
        tie_word_embeddings: True if the embedding is also the output head.
        attention_bias: True if the q, k and v projections have biases.
        qk_norm: True if q and k are normalized per head before RoPE (Qwen3).
        sliding_window: the layers with a sliding window; None if there are none.
        experts: the mixture of experts of some layers; None if all layers have an MLP.
        quantization: the formats of packed matrices; None if no matrix is packed.
        recurrent: the layers with a recurrent state instead of keys and values; None if all layers
            have attention.
        output_gate: True if a gate scales the output of attention (Qwen3-Next, Qwen3.5).
        rotary_dims: the number of features of a head that RoPE rotates, an even number.
        mtp_layers: the number of layers of the draft head for multi-token prediction. A checkpoint
            may lack its weights.
        chunk_size: the longest text in one chunk of dual chunk attention (Qwen2.5-1M), for which it
            is plain attention; None for models without.
        has_vision_tower: True if the checkpoint has a vision tower, which is not loaded.
    """

    model_type: ModelType
    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: Yarn | None = None
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    qk_norm: bool = False
    sliding_window: SlidingWindow | None = None
    experts: Experts | None = None
    quantization: Quantization | None = None
    recurrent: Recurrent | None = None
    output_gate: bool = False
    rotary_dims: int = 0
    mtp_layers: int = 0
    chunk_size: int | None = None
    has_vision_tower: bool = False

    def __post_init__(self) -> None:
        """Rotate whole heads unless `rotary_dims` is given."""
        if not self.rotary_dims:
            object.__setattr__(self, "rotary_dims", self.head_dim)

    @property
    def output_bias(self) -> bool:
        """True if the output projection of attention has a bias: Qwen3 with attention_bias."""
        return self.attention_bias and self.model_type not in QWEN2

    @property
    def is_nested(self) -> bool:
        """True if the model is the language model of a larger one in the files."""
        return self.model_type in NESTED

    @property
    def mlx_prefix(self) -> str:
        """The prefix of all tensors in a checkpoint of MLX, before "model."."""
        return "language_model." if self.is_nested else ""

    @property
    def context_length(self) -> int:
        """The longest context that the model supports, in tokens.

        Configs of Qwen that set `rope_scaling` keep the `max_position_embeddings` of the model
        without scaling, so the factor of YaRN is applied here.
        """
        length = self.max_position_embeddings
        if (yarn := self.rope_scaling) is not None:
            length = max(length, int(yarn.original_max_position_embeddings * yarn.factor))
        return length if self.chunk_size is None else min(length, self.chunk_size)

    @property
    def notices(self) -> tuple[str, ...]:
        """Sentences about parts of the checkpoint that are not loaded, for the user."""
        notices: list[str] = []
        if self.has_vision_tower:
            notices.append(
                "images are not understood: the vision tower of this checkpoint is not loaded"
            )
        if self.context_length == self.chunk_size:
            notices.append(
                f"texts have at most {self.chunk_size} tokens, one chunk of this checkpoint: dual "
                "chunk attention, for longer ones, is not implemented"
            )
        return tuple(notices)

    @classmethod
    def from_folder(cls, folder: Path) -> "QwenConfig":
        """Read `config.json` of a checkpoint.

        Raises:
            CheckpointError: as in `from_hf`, or if the file is missing or not JSON.
        """
        path = folder / "config.json"
        return cls.from_hf(read_json_object(path), str(path))

    @classmethod
    def from_hf(cls, config: dict[str, object], source: str = "config.json") -> "QwenConfig":
        """Read the decoded `config.json` of a Hugging Face or MLX checkpoint.

        Files of transformers 4 and 5 are supported. The upper limits of numbers are far beyond any
        published model. They prevent a damaged file from requiring, say, a billion layers.

        Args:
            config: the decoded object.
            source: the name of the object for error messages.

        Raises:
            CheckpointError: if a field is missing or invalid, or if the config requires a feature
                that is not implemented.
        """
        fields = Fields(_text_config(config, source), source)
        model_type = read_model_type(fields)
        hybrid = model_type in HYBRID
        _refuse_unimplemented(fields, model_type)
        hidden_size = fields.integer("hidden_size", 1, 1 << 20)
        heads = fields.integer("num_attention_heads", 1, 1 << 14)
        kv_heads = fields.integer("num_key_value_heads", 1, 1 << 14, default=heads)
        if heads % kv_heads:
            raise fields.error("num_key_value_heads", f"a divisor of num_attention_heads ({heads})")
        layers = fields.integer("num_hidden_layers", 1, 1024)
        context = fields.integer("max_position_embeddings", 1, 1 << 31)
        head_dim = _head_dim(fields, hidden_size, heads, required=hybrid)
        return cls(
            model_type=model_type,
            vocab_size=fields.integer("vocab_size", 1, 1 << 24),
            hidden_size=hidden_size,
            num_hidden_layers=layers,
            intermediate_size=_intermediate_size(fields, model_type),
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            head_dim=head_dim,
            max_position_embeddings=context,
            rms_norm_eps=fields.number("rms_norm_eps", 0.0, 1.0),
            rope_theta=read_rope_theta(fields),
            rope_scaling=read_rope_scaling(fields, context, partial=hybrid),
            tie_word_embeddings=fields.flag("tie_word_embeddings", default=False),
            attention_bias=_attention_bias(fields, model_type),
            qk_norm=model_type not in QWEN2,
            sliding_window=None if hybrid else SlidingWindow.from_hf(fields, model_type, layers),
            experts=_experts(fields, model_type, layers),
            quantization=Quantization.from_hf(config, source),
            recurrent=Recurrent.from_hf(fields, layers, joint=model_type == "qwen3_next")
            if hybrid
            else None,
            output_gate=hybrid,
            rotary_dims=read_rotary_dims(fields, head_dim) if hybrid else head_dim,
            mtp_layers=_mtp_layers(fields, model_type),
            chunk_size=_chunk_size(fields),
            has_vision_tower=fields.table("vision_config") is not None,
        )


def _text_config(config: dict[str, object], source: str) -> dict[str, object]:
    """Return the fields of the language model.

    A model with a vision tower nests them in `text_config`. They take precedence over fields of
    the same name at the top level. `tie_word_embeddings` is the exception, as in transformers:
    transformers 5 writes a default into `text_config`, which may be wrong.
    """
    fields = Fields(config, source)
    nests = may_nest(fields)
    nested = fields.table("text_config")
    if nested is None or not nests:
        return config
    text_config = {name: value for name, value in nested.items() if value is not None}
    top = {name: value for name, value in config.items() if name != "text_config"}
    if top.get("tie_word_embeddings") is not None:
        text_config.pop("tie_word_embeddings", None)
    return top | text_config


def _attention_bias(fields: Fields, model_type: ModelType) -> bool:
    """Return True if q, k and v have biases."""
    if model_type == "qwen2":  # always: transformers reads no field
        return True
    if model_type == "qwen2_moe":
        return fields.flag("qkv_bias", default=True)
    return fields.flag("attention_bias", default=False)


def _experts(fields: Fields, model_type: ModelType, layers: int) -> Experts | None:
    """Return the mixture of experts of a model type that has experts."""
    if model_type in HYBRID_MOE:
        return Experts.hybrid(fields, layers)
    if model_type not in MOE:
        return None
    return Experts.from_hf(
        fields,
        layers,
        normalized=model_type == "qwen3_vl_moe",
        shared=model_type == "qwen2_moe",
    )


def _intermediate_size(fields: Fields, model_type: ModelType) -> int:
    """Return `intermediate_size`, or that of the shared expert if all layers have experts."""
    shared = "shared_expert_intermediate_size"
    name = shared if model_type in HYBRID_MOE else "intermediate_size"
    return fields.integer(name, 1, 1 << 24)


def _chunk_size(fields: Fields) -> int | None:
    """Return the chunk size of dual chunk attention (An et al. 2024, arXiv:2402.17463)."""
    name = "dual_chunk_attention_config"
    return fields.nested(name).integer("chunk_size", 1, 1 << 31) if fields.table(name) else None


def _mtp_layers(fields: Fields, model_type: ModelType) -> int:
    """Return the number of layers of the draft head; Qwen3-Next does not write its one layer."""
    if model_type == "qwen3_next":
        return 1
    name = "mtp_num_hidden_layers"
    return fields.integer(name, 0, 64, default=0) if model_type in HYBRID else 0


def _refuse_unimplemented(fields: Fields, model_type: ModelType) -> None:
    """Raise CheckpointError if the config requires a feature that is not implemented."""
    hybrid = model_type in HYBRID
    neutral_values = _NOT_IN_USE | ({} if hybrid else {"partial_rotary_factor": (1,)})
    for name, neutral in neutral_values.items():
        value = fields.raw(name)
        if value is not None and value not in neutral:
            raise CheckpointError(f"{fields.source}: {name} = {show(value)} is not implemented yet")
    if model_type not in (*MOE, *HYBRID_MOE) and fields.raw("num_experts") not in (None, 0):
        raise fields.error("num_experts", "none in a model_type without experts")
    if hybrid and not fields.flag("attn_output_gate", default=True):
        raise fields.error("attn_output_gate", "true, as in all models of this type")
    if hybrid and fields.flag("attention_bias", default=False):
        raise fields.error("attention_bias", "false, as in all published models of this type")
    has_window = not hybrid and model_type not in ("qwen2_moe", *NESTED)
    if not has_window and fields.raw("use_sliding_window"):
        raise fields.error("use_sliding_window", "false, as in all published models of this type")


def _head_dim(fields: Fields, hidden_size: int, heads: int, *, required: bool) -> int:
    """Return `head_dim`, or E / H if the config omits it and the field is not required."""
    if required:  # in hybrid models the defaults differ: 256 in transformers, E / H in mlx-lm
        fields.integer("head_dim", 2, 1 << 14)
    if fields.raw("head_dim") is None and hidden_size % heads:
        raise CheckpointError(
            f"{fields.source}: head_dim is missing and hidden_size ({hidden_size}) is not a "
            f"multiple of num_attention_heads ({heads}): take the file of the original model"
        )
    head_dim = fields.integer("head_dim", 2, 1 << 14, default=hidden_size // heads)
    if head_dim % 2:
        raise CheckpointError(
            f"{fields.source}: head_dim: expected an even number, since RoPE turns pairs, "
            f"got {head_dim}: take the file of the original model"
        )
    return head_dim
