"""Runner of OpenVINO with a model of random weights."""

import importlib
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from tinyllm_cli.cores import usable_cores
from tinyllm_qwen import QwenConfig

from tinyllm_bench.cases.whole_model import LocalRunner
from tinyllm_bench.peers.openvino_graph import OpenVinoFormat, build_model, random_codes

KV_NUMBER_BYTES = 1  # the default cache of OpenVINO on a CPU has 8 bits


class OpenVinoRunner(LocalRunner):
    """Runs a model in OpenVINO's CPU plugin, in the precision that the plugin chooses."""

    OPTIONS: ClassVar[dict[str, object]] = {
        "PERFORMANCE_HINT": "LATENCY",
        "KV_CACHE_PRECISION": "u8",
    }

    def __init__(
        self, config: QwenConfig, weights: OpenVinoFormat, prompt: Sequence[int], context: int
    ) -> None:
        """Build and compile the model."""
        openvino = importlib.import_module("openvino")
        options = self.OPTIONS | {"INFERENCE_NUM_THREADS": usable_cores()}
        self._codes = random_codes(config, weights)  # the graph refers to this memory
        model = build_model(config, weights, self._codes)
        self._request = openvino.Core().compile_model(model, "CPU", options).create_infer_request()
        self._tensor = openvino.Tensor
        self._prompt = np.array([prompt], np.int64)
        self._context = context
        # Keys or values of one layer before decoding. Their values do not change the cost.
        shape = (1, config.num_key_value_heads, context, config.head_dim)
        self._cached = np.random.default_rng(0).standard_normal(shape, np.float32)

    def prefill(self) -> None:
        """Read the prompt in one call."""
        self._request.reset_state()
        self._next(self._prompt, 0)

    def rewind(self) -> None:
        """Set keys and values of the context in every layer."""
        self._request.reset_state()
        if self._context:
            for state in self._request.query_state():
                state.state = self._tensor(self._cached)

    def decode(self, tokens: int) -> None:
        """Choose each token from the logits after the previous token."""
        token = int(self._prompt[0, 0])
        for position in range(self._context, self._context + tokens):
            token = self._next(np.array([[token]], np.int64), position)

    def _next(self, tokens: "np.ndarray[tuple[int, int], np.dtype[np.int64]]", first: int) -> int:
        """Return the most probable token after tokens that begin at the position `first`."""
        positions = np.arange(first, first + tokens.shape[1], dtype=np.int64)[None]
        inputs = [tokens, positions, np.zeros(1, np.int32)]
        self._request.infer(inputs, share_inputs=True)
        return int(self._request.get_output_tensor(0).data.argmax())
