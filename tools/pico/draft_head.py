"""The draft head of the hybrid: a decoder layer that predicts the token after the next one.

Its parameters have the names of Qwen3.5's checkpoints, behind the prefix `mtp.`.
"""

import torch
from torch import Tensor, nn
from transformers import Qwen3_5TextConfig
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5DecoderLayer, Qwen3_5RMSNorm


class DraftHead(nn.Module):  # type: ignore[misc]
    """x_t = fc([norm_e(embed(token_(t+1))); norm_h(h_t)]);  out_t = norm(layer(x)_t).

    The model's embedding and head belong to it too, but not to this module. h_t is the hidden state
    of the model after its final norm.
    """

    def __init__(self, config: Qwen3_5TextConfig) -> None:
        """Make a head with the layer shape of `config`."""
        super().__init__()
        width, eps = config.hidden_size, config.rms_norm_eps
        self.pre_fc_norm_embedding = Qwen3_5RMSNorm(width, eps)
        self.pre_fc_norm_hidden = Qwen3_5RMSNorm(width, eps)
        self.fc = nn.Linear(2 * width, width, bias=False)
        attention = config.layer_types.index("full_attention")
        self.layers = nn.ModuleList([Qwen3_5DecoderLayer(config, attention)])
        self.norm = Qwen3_5RMSNorm(width, eps)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=config.initializer_range)

    def forward(
        self, embedded: Tensor, hidden: Tensor, positions: tuple[Tensor, Tensor], mask: Tensor
    ) -> Tensor:
        """Return the hidden states (B L E) from which the token at t + 2 is predicted.

        Args:
            embedded: the embedding of the token after each position, B L E.
            hidden: the hidden state of each position, B L E.
            positions: cosines and sines of RoPE.
            mask: causal mask, to be added to the scores.
        """
        both = [self.pre_fc_norm_embedding(embedded), self.pre_fc_norm_hidden(hidden)]
        x = self.fc(torch.cat(both, dim=-1))
        x = self.layers[0](x, position_embeddings=positions, attention_mask=mask)
        return self.norm(x)
