"""The state of models, optimizers and samplers."""

from __future__ import annotations

import copy
import warnings
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from lightcc import basics
from lightcc.elastic import ObjectState
from lightcc.elastic._replicas import sample
from lightcc.functions import broadcast_object
from lightcc.torch.elastic.sampler import ElasticSampler
from lightcc.torch.functions import broadcast_optimizer_state, broadcast_parameters

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO


class StateHandler:
    """Saves, restores and synchronises one value that has a `state_dict()`.

    Attributes:
        value: What it handles.
        source: The rank whose state `sync` takes over.
        moves_in_steps: Whether the value moves when a step ends, and at no other time. Where a
            training rolls forward such a value is not copied.
    """

    moves_in_steps: ClassVar[bool] = False
    source = 0

    def __init__(self, value: Any) -> None:
        """Takes the value, and saves its state."""
        self.value = value
        self._saved: Any = None
        self.save()

    def save(self) -> None:
        """Keeps a copy of the value's state."""
        self._saved = copy.deepcopy(self.value.state_dict())

    def restore(self) -> None:
        """Gives the value the state that was saved last."""
        self.value.load_state_dict(self._saved)

    def saved(self) -> Any:
        """Returns the state that was saved last."""
        return self._saved

    def load(self, saved: Any) -> None:
        """Gives the value a state that `saved` has returned, and takes it as saved."""
        self._saved = saved
        self.restore()

    def sync(self) -> None:
        """Gives the value the state of rank `source`. Collective: every rank must call it."""
        raise NotImplementedError

    def set_value(self, value: Any) -> None:
        """Takes another value in its place, and saves its state."""
        self.value = value
        self.save()


class ModelStateHandler(StateHandler):
    """Handles a `torch.nn.Module`."""

    moves_in_steps = True

    def sync(self) -> None:
        """Gives the model the parameters and buffers of rank `source`."""
        broadcast_parameters(self.value.state_dict(), root_rank=self.source)


class OptimizerStateHandler(StateHandler):
    """Handles a `torch.optim.Optimizer`.

    Attributes:
        has_stepped: Whether it has made a step since this was set to False.
    """

    moves_in_steps = True

    def __init__(self, value: Any) -> None:
        """Takes the optimizer, and saves its state."""
        self.has_stepped = False
        value.register_step_post_hook(self._note_step)
        super().__init__(value)

    def restore(self) -> None:
        """Gives the optimizer the state that was saved last.

        torch's optimizers go on with the tensors that they load, so they get copies.
        """
        self.value.load_state_dict(copy.deepcopy(self._saved))

    def sync(self) -> None:
        """Gives the optimizer the state of rank `source`."""
        broadcast_optimizer_state(self.value, root_rank=self.source)

    def set_value(self, value: Any) -> None:
        """Takes another optimizer in its place, and saves its state."""
        value.register_step_post_hook(self._note_step)
        super().set_value(value)

    def _note_step(self, *_: Any) -> None:
        self.has_stepped = True


class SamplerStateHandler(StateHandler):
    """Handles an `ElasticSampler`."""

    def sync(self) -> None:
        """Gives the sampler the position of rank `source`, and deals what is left anew."""
        self.value.load_state_dict(broadcast_object(self.value.state_dict(), self.source))


_registry: list[tuple[type, type[StateHandler]]] = [
    (torch.nn.Module, ModelStateHandler),
    (torch.optim.Optimizer, OptimizerStateHandler),
    (ElasticSampler, SamplerStateHandler),
]


def get_handler_registry() -> list[tuple[type, type[StateHandler]]]:
    """Returns which class handles values of which type; the first type that fits counts."""
    return _registry


def set_handler_registry(registry: list[tuple[type, type[StateHandler]]]) -> None:
    """Replaces what `get_handler_registry()` returns, for states that are made from now on."""
    global _registry
    _registry = registry


class TorchState(ObjectState):
    """Models, optimizers, samplers and Python objects as attributes.

    Assigning another model, optimizer or sampler to such an attribute saves its state. Assigning to
    any other attribute does not.
    """

    _handlers: dict[str, StateHandler]

    def __init__(
        self,
        model: torch.nn.Module | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        **kwargs: Any,
    ) -> None:
        """Makes the state, and saves it.

        Args:
            model: The attribute `model`.
            optimizer: The attribute `optimizer`.
            kwargs: Other attributes. What no handler takes is an object, which travels pickled.
        """
        values = kwargs | {"model": model, "optimizer": optimizer}
        handlers = {name: _handler_of(value) for name, value in values.items()}
        self._handlers = {name: it for name, it in handlers.items() if it is not None}
        for name, handler in self._handlers.items():
            object.__setattr__(self, name, handler.value)
        objects = {name: value for name, value in values.items() if name not in self._handlers}
        super().__init__(bcast_object=broadcast_object, get_rank=basics.rank, **objects)

    def save(self) -> None:
        """Keeps copies of the states of models, optimizers and samplers, and the objects."""
        for handler in self._handlers.values():
            handler.save()
        super().save()

    def restore(self) -> None:
        """Goes back to what was saved last."""
        for handler in self._handlers.values():
            handler.restore()
        super().restore()

    def sync(self) -> None:
        """Takes over rank 0's state, and saves it. Collective.

        Horovod's does not save, so that a rank which came later, and is left alone before it
        commits, would go back to the model that it was started with.
        """
        for handler in self._handlers.values():
            handler.source = self._source
            handler.sync()
            if not (self._rolls_forward and handler.moves_in_steps):
                handler.save()
        super().sync()

    def samples(self, turn: int) -> Iterator[bytes]:
        """Yields parts of the models' parameters, and of arrays of numpy.

        Buffers are left out: those of BatchNorm are each rank's own.
        """
        for name in sorted(self._handlers):
            value = self._handlers[name].value
            if isinstance(value, torch.nn.Module):
                for parameter in value.parameters():
                    flat = parameter.detach().reshape(-1)
                    part = sample(flat, flat.numel(), turn).contiguous()
                    yield part.view(torch.uint8).cpu().numpy().tobytes()
        yield from super().samples(turn)

    def write_to(self, file: BinaryIO) -> None:
        """Writes the last commit, in torch's format.

        Where training rolls forward, models and optimizers are as they are now: a commit comes
        right after a step.
        """
        states = {
            name: it.value.state_dict() if self._rolls_forward and it.moves_in_steps else it.saved()
            for name, it in self._handlers.items()
        }
        torch.save({"states": states, "objects": self._saved_state}, file)

    def read_from(self, file: BinaryIO) -> None:
        """Takes over a commit that `write_to` has written; tensors go to where the values are."""
        found = torch.load(file, map_location="cpu", weights_only=False)
        for name, handler in self._handlers.items():
            handler.load(found["states"][name])
        self._saved_state = found["objects"]
        self._set_attributes()

    def mark(self) -> None:
        """Keeps the objects, and copies of the states of samplers."""
        for handler in self._handlers.values():
            if not handler.moves_in_steps:
                handler.save()
            if isinstance(handler, OptimizerStateHandler):
                handler.has_stepped = False
        super().mark()

    def resume(self) -> None:
        """Goes back to the last finished step; models and optimizers are there."""
        handlers = self._handlers.values()
        if any(isinstance(it, OptimizerStateHandler) and it.has_stepped for it in handlers):
            warnings.warn(
                "a step that moved parameters was not committed before a rank failed, and is made "
                "again: with recovery='forward', commit right after optimizer.step()",
                stacklevel=2,
            )
        for handler in handlers:
            if not handler.moves_in_steps:
                handler.restore()
        super().resume()

    def __setattr__(self, name: str, value: Any) -> None:
        """Sets an attribute; a handler takes over the value where there is one."""
        if name != "_handlers" and name in self._handlers:
            self._handlers[name].set_value(value)
        super().__setattr__(name, value)


def _handler_of(value: Any) -> StateHandler | None:
    for kind, handler in _registry:
        if isinstance(value, kind):
            return handler(value)
    return None
