"""The driver: the model of rank 0, whose passes all ranks compute together."""

import weakref
from collections.abc import Sequence
from dataclasses import replace

import mlx.core as mx
from jaxtyping import Float, Integer
from tinyllm_layers import Batch, LayerCache, PagedCache, RecurrentPool, RMSNorm, SequenceCache
from tinyllm_ops import OpSet, Weight

from tinyllm_qwen.caches import batch_after, common_offset
from tinyllm_qwen.config.qwen import QwenConfig
from tinyllm_qwen.model import AnyCache, Qwen, check_selection
from tinyllm_qwen.parallel.bounded_cache import bounded
from tinyllm_qwen.parallel.command import CacheSpec, Forward, encode
from tinyllm_qwen.parallel.control_channel import ControlChannel
from tinyllm_qwen.parallel.execute import Result, execute, result_arrays
from tinyllm_qwen.sampling.best_tokens import BestTokens, check_num_best
from tinyllm_qwen.tolist import int_rows


class Driver:
    """Rank 0's `Qwen`, which sends each pass to the workers as a command, and executes it too.

    The evaluation of a pass starts at once, even if the result is not read: see `execute`.
    """

    def __init__(self, model: Qwen, channels: Sequence[ControlChannel]) -> None:
        """Make the driver.

        Args:
            model: rank 0's part of the model.
            channels: the channels to all other ranks.
        """
        self._model = model
        self._channels = channels
        self._known: weakref.WeakKeyDictionary[LayerCache, tuple[int, CacheSpec]] = (
            weakref.WeakKeyDictionary()
        )
        self._dropped: list[int] = []
        self._made = 0
        self._in_step = True
        self._unread: Result = None

    def __call__(
        self,
        tokens: Integer[mx.array, "B L"],
        caches: Sequence[LayerCache] | None = None,
        *,
        batch: Batch | None = None,
        last: int | None = None,
        indices: Sequence[int] | None = None,
    ) -> Float[mx.array, "rows n V"]:
        """Return the logits of the next token, computed on all ranks; see `Qwen`."""
        check_selection(tokens, last, indices)
        caches = self.make_caches() if caches is None else caches
        batch = batch_after(caches, *tokens.shape) if batch is None else batch
        forward = self._forward(tokens, batch, caches)
        return self._array(replace(forward, output="logits", last=last, indices=indices), caches)

    def hidden(
        self, tokens: Integer[mx.array, "B L"], batch: Batch, caches: Sequence[LayerCache]
    ) -> Float[mx.array, "B L E"]:
        """Return the output of the last layer, computed on all ranks; see `Qwen.hidden`."""
        return self._array(self._forward(tokens, batch, caches), caches)

    def best_tokens(
        self,
        tokens: Integer[mx.array, "B L"],
        batch: Batch,
        caches: Sequence[LayerCache],
        k: int,
        *,
        indices: Sequence[int] | None = None,
    ) -> BestTokens:
        """Return the k most likely next tokens, computed on all ranks; see `Qwen.best_tokens`."""
        check_num_best(k, self.config.vocab_size)
        check_selection(tokens, None, indices)
        forward = self._forward(tokens, batch, caches)
        best = self._run(replace(forward, output="best", k=k, indices=indices), caches)
        assert isinstance(best, BestTokens)
        return best

    def layer_caches(self, caches: Sequence[AnyCache]) -> Sequence[AnyCache]:
        """Return the caches of the decoder layers of rank 0; see `Qwen.layer_caches`."""
        return self._model.layer_caches(caches)

    def make_caches(
        self, *, kv_bits: int | None = None, max_size: int | None = None
    ) -> list[SequenceCache]:
        """Make empty caches for one sequence. Workers make their caches with the first pass."""
        caches = self._model.make_caches(kv_bits=kv_bits, max_size=max_size)
        caches = bounded(caches, self.config, kv_bits=kv_bits, max_size=max_size)
        self._number(caches[0], CacheSpec(kv_bits=kv_bits, max_size=max_size))
        return caches

    def make_pages(
        self, count: int, page_size: int, *, kv_bits: int | None = None, state_slots: int = 0
    ) -> list[PagedCache | RecurrentPool]:
        """Make empty pages for many sequences. All ranks allocate the memory at once."""
        pages = self._model.make_pages(count, page_size, kv_bits=kv_bits, state_slots=state_slots)
        spec = CacheSpec(
            kv_bits=kv_bits, num_pages=count, page_size=page_size, state_slots=state_slots
        )
        self._run(Forward(self._number(pages[0], spec), spec), pages)
        return pages

    def copy_pages(self, caches: Sequence[LayerCache], pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole pages of all layers on all ranks; see `Qwen.copy_pages`."""
        number, spec = self._cache_of(caches)
        self._run(Forward(number, spec, copies=pairs), caches)

    def page_bytes(self, page_size: int, *, kv_bits: int | None = None) -> int:
        """Return the size of one page in bytes, the largest of all ranks; see `Qwen.page_bytes`."""
        return self._model.page_bytes(page_size, kv_bits=kv_bits)

    def state_bytes(self) -> int:
        """Return the bytes of one state, the largest of all ranks; see `Qwen.state_bytes`."""
        return self._model.state_bytes()

    def weights(self) -> list[Weight]:
        """List the weights of rank 0."""
        return self._model.weights()

    @property
    def config(self) -> QwenConfig:
        """The architecture of the whole model."""
        return self._model.config

    @property
    def ops(self) -> OpSet:
        """The implementation of the maths."""
        return self._model.ops

    @property
    def dtype(self) -> mx.Dtype:
        """The dtype of activations."""
        return self._model.dtype

    @property
    def norm(self) -> RMSNorm:
        """The norm after the last layer."""
        return self._model.norm

    @property
    def num_caches(self) -> int:
        """The number of caches in rank 0; see `Qwen.num_caches`."""
        return self._model.num_caches

    @property
    def num_ranks(self) -> int:
        """The number of processes that share the model."""
        return self._model.num_ranks

    @property
    def nbytes(self) -> int:
        """The size of the weights of rank 0 in bytes."""
        return self._model.nbytes

    def _number(self, cache: LayerCache, spec: CacheSpec) -> int:
        """Assign a number to new caches. `cache` is the cache of the first layer."""
        number, self._made = self._made, self._made + 1
        self._known[cache] = number, spec
        # The finalizer only notes the number, because it may run while a command is sent. The next
        # command carries the number to the workers.
        weakref.finalize(cache, self._dropped.append, number).atexit = False
        return number

    def _cache_of(self, caches: Sequence[LayerCache]) -> tuple[int, CacheSpec]:
        """Return the number and the spec of caches.

        Raises:
            ValueError: if this driver has not made the caches.
        """
        known = self._known.get(caches[0]) if caches else None
        if known is None or len(caches) != self.num_caches:
            raise ValueError(
                f"caches: expected one list of {self.num_caches} caches, made by this model's "
                f"make_caches or make_pages, got {len(caches)} that it did not make: make new ones"
            )
        return known

    def _forward(self, tokens: mx.array, batch: Batch, caches: Sequence[LayerCache]) -> Forward:
        """Make the command of a pass.

        All checks that could fail happen here, before the workers get the command.

        Raises:
            ValueError: if the driver has not made the caches, or the batch does not fit the caches
                or the tokens.
        """
        number, spec = self._cache_of(caches)
        if (batch.rows, batch.length) != tokens.shape:
            raise ValueError(
                f"tokens: expected the batch's shape {(batch.rows, batch.length)}, got "
                f"{tuple(tokens.shape)}"
            )
        length = None
        if spec.num_pages is not None:
            self._check_tables(batch, spec)
        else:
            length = common_offset([cache for cache in caches if isinstance(cache, SequenceCache)])
            if batch.page_table is not None:
                raise ValueError("batch: expected `Batch.at` for caches of one sequence, got pages")
        for layer in self._model.layers:
            layer.mixer.check_positions(batch)
        ids = int_rows(tokens)
        return Forward(number, spec, length=length, tokens=ids, batch=batch)

    def _check_tables(self, batch: Batch, spec: CacheSpec) -> None:
        """Require a table of the pages, and of the slots if the model has recurrent layers."""
        table, pages = batch.page_table, (spec.num_pages, spec.page_size)
        if table is None or (table.num_pages, table.page_size) != pages:
            raise ValueError(
                f"batch: expected a table of {spec.num_pages} pages of {spec.page_size} tokens, "
                f"got {'none' if table is None else f'{table.num_pages} of {table.page_size}'}"
            )
        expected = None if self.config.recurrent is None else spec.state_slots
        got = None if batch.state_table is None else batch.state_table.num_slots
        if expected != got:
            raise ValueError(
                f"batch: expected a state table of {'no' if expected is None else expected} slots, "
                f"got {'no table' if got is None else f'one of {got}'}: pass `state_table` to "
                "`Batch.paged` for models with recurrent layers, and only for them"
            )

    def _array(self, forward: Forward, caches: Sequence[LayerCache]) -> mx.array:
        result = self._run(forward, caches)
        assert isinstance(result, mx.array)
        return result

    def _run(self, forward: Forward, caches: Sequence[LayerCache]) -> Result:
        """Send a command to all workers and execute it.

        Raises:
            RuntimeError: if an earlier pass was interrupted, so that workers still wait for rank 0.
        """
        if not self._in_step:
            raise RuntimeError(
                "the ranks are out of step, because a forward pass was interrupted: restart the "
                "program on all ranks"
            )
        dropped = tuple(self._dropped)
        line = encode(replace(forward, dropped=dropped))
        del self._dropped[: len(dropped)]  # a finalizer may have added numbers
        self._in_step = False
        for channel in self._channels:
            channel.send(line)
        # MLX writes to caches in place only if no running pass reads them. Callers wait for scores,
        # but may ignore hidden states.
        mx.eval(result_arrays(self._unread))
        result = execute(self._model, {forward.cache: caches}, forward)
        self._unread = result if forward.output == "hidden" else None
        self._in_step = True
        return result
