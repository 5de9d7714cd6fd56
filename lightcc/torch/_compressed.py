"""What a DistributedOptimizer's users see of compression."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lightcc._adapter import CompressedGradients, CompressionTuner


class Compressed:
    """The residuals of an optimizer's gradients, and what compression chooses."""

    _compressed: CompressedGradients
    _tuner: CompressionTuner[Any] | None

    def compression_choices(self) -> dict[str, str]:
        """Returns how `Compression.auto` has gradients travel now, by their names.

        Others than `Compression.auto` choose nothing: the dict is empty. It lacks gradients that
        are not compressed because they are small, or have another dtype. Where all ranks share a
        host, no gradient is.
        """
        return {} if self._tuner is None else self._tuner.choices()

    def compression_state_dict(self) -> dict[str, Any]:
        """Returns the residuals of this rank's gradients.

        It is not part of `state_dict()`, which is the given optimizer's: each rank has another, and
        has to save and load its own. `save_compression_state()` does that for all tensors.

        Returns:
            A dict of numbers, strings and bytes for `load_compression_state_dict()`.

        Raises:
            ValueError: Gradients are on their way.
        """
        return self._compressed.state_dict()

    def load_compression_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes in what `compression_state_dict()` returned on this rank.

        The next steps are then those that would have followed, bit for bit. The state of another
        grid is dropped with a warning.

        Collective: every rank of the process set must call it.

        Raises:
            ValueError: The state of some rank is damaged, or gradients are on their way. On all
                ranks, and none has loaded anything.
        """
        self._compressed.load_state_dict(state)

    def set_gradient_scale(self, scale: float) -> None:
        """Tells compression by what the loss is multiplied from now on, and so the gradients.

        Residuals were computed with the scale before, and are multiplied by the quotient.
        Call it on every rank, after a step, whenever the scale changes; `lightcc.torch.GradScaler`
        does.

        Raises:
            ValueError: `scale` is not a finite number above zero, or gradients are on their way.
        """
        self._compressed.set_gradient_scale(scale)

    def expect_gradient_scale(self, scale: float) -> None:
        """Hears by what the loss was multiplied whose gradients are on their way already.

        `lightcc.torch.GradScaler` says it in its first step.

        Raises:
            ValueError: Residuals have another scale; `set_gradient_scale()` comes before
                the backward pass.
        """
        self._compressed.expect_gradient_scale(scale)
