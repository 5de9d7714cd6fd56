"""The state of models, optimizers and samplers."""

from __future__ import annotations

import copy
import io
import warnings
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from lightcc import _world
from lightcc._adapter import put_together, take_apart
from lightcc._ops import basics
from lightcc._ops.functions import broadcast_object
from lightcc.elastic import ObjectState
from lightcc.elastic._replicas import sample
from lightcc.exceptions import HorovodInternalError
from lightcc.torch._loading import load_in_place
from lightcc.torch.elastic._large import Large, describe, is_large, make
from lightcc.torch.elastic.sampler import ElasticSampler
from lightcc.torch.functions import (
    as_bytes,
    broadcast_optimizer_state,
    broadcast_parameters,
    fill_gradients,
)
from lightcc.torch.local_steps import LocalSteps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import BinaryIO

    from lightcc._typing import Array


class StateHandler:
    """Saves, restores and synchronises one value that has a `state_dict()`.

    Attributes:
        value: What it handles.
        source: The rank whose state `sync` takes over.
        moves_in_steps: Whether the value moves when a step ends, and at no other time. Where a
            training rolls forward such a value is not copied.
        moves_models: Whether `sync` changes parameters; then it comes before that of models.
    """

    moves_in_steps: ClassVar[bool] = False
    moves_models: ClassVar[bool] = False
    source = 0

    def __init__(self, value: Any) -> None:
        """Takes the value, and saves its state."""
        self.value = value
        self._saved: Any = None
        self.save()

    def save(self) -> None:
        """Keeps a copy of the value's state, when GPUs have finished what it comes from."""
        _world.finish()
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
        self.value.load_state_dict(broadcast_object(self.value.state_dict(), self.source))

    def reset(self) -> None:
        """Prepares the value for another world; nothing, unless a subclass has something to do."""

    def set_value(self, value: Any) -> None:
        """Takes another value in its place, and saves its state."""
        self.value = value
        self.save()

    def parts(self) -> tuple[Any, list[torch.Tensor]]:
        """Returns what `targets` needs, and large tensors, which the next step may change at first.

        For newcomers, in place of `sync`. What `targets` needs is pickled at once.
        """
        return self.value.state_dict(), []

    def targets(self, about: Any) -> list[torch.Tensor]:
        """Returns contiguous tensors in CPU memory for the large ones, and remembers the rest."""
        self._arriving = about
        return []

    def arrive(self) -> None:
        """Gives the value the state that has arrived."""
        self.value.load_state_dict(self._arriving)
        del self._arriving


class ModelStateHandler(StateHandler):
    """Handles a `torch.nn.Module`."""

    moves_in_steps = True

    def sync(self) -> None:
        """Gives the model what that of rank `source` has: parameters, buffers and extra state.

        Raises:
            ValueError: The models have entries of other names; not on rank `source`.
        """
        own = self.value.state_dict()
        extra = {name for name, it in own.items() if _is_extra(name, it)}
        sent = {name: it if name in extra else None for name, it in own.items()}
        found = broadcast_object(sent, self.source, "model_state")
        if differing := sorted(found.keys() ^ own.keys()):
            msg = (
                f"only one of this model and that of rank {self.source} has "
                f"{', '.join(differing)}: all ranks need the same layers"
            )
            raise ValueError(msg)
        parts = {name: it for name, it in own.items() if name not in extra}
        broadcast_parameters(parts, root_rank=self.source)
        if extra and _world.rank() != self.source:
            self.value.load_state_dict({name: found[name] for name in extra}, strict=False)

    def parts(self) -> tuple[Any, list[torch.Tensor]]:
        """Returns copies of buffers and of what is small, and the large parameters themselves."""
        parameters = dict(self.value.named_parameters(remove_duplicate=False))
        about: list[tuple[str, Any]] = []
        large = []
        for name, value in self.value.state_dict().items():
            if not isinstance(value, torch.Tensor):
                about.append((name, copy.deepcopy(value)))
            elif name in parameters and isinstance(description := describe(value), Large):
                about.append((name, description))
                large.append(value)
            else:
                about.append((name, value.detach().clone()))
        return about, large

    def targets(self, about: Any) -> list[torch.Tensor]:
        """Returns the model's own parameters, where they lie in CPU memory as they travel."""
        own = self.value.state_dict()
        self._arriving = {
            name: it.target(own.get(name)) if isinstance(it, Large) else it for name, it in about
        }
        return [self._arriving[name] for name, it in about if isinstance(it, Large)]

    def arrive(self) -> None:
        """Gives the model what has not arrived in its own parameters."""
        own, arrived = self.value.state_dict(), self._arriving
        del self._arriving
        fits = own.keys() == arrived.keys() and all(
            isinstance(it, torch.Tensor) and it.shape == getattr(arrived[name], "shape", None)
            for name, it in own.items()
        )
        if not fits:
            self.value.load_state_dict(arrived)  # Says what does not fit.
            return
        with torch.no_grad():
            for name, value in own.items():
                if value.data_ptr() != arrived[name].data_ptr():
                    value.copy_(arrived[name])


def _is_extra(name: str, value: Any) -> bool:
    """Whether an entry of a model's state is what a module's `get_extra_state()` returned."""
    return not isinstance(value, torch.Tensor) or name.endswith("_extra_state")


class OptimizerStateHandler(StateHandler):
    """Handles a `torch.optim.Optimizer`.

    Attributes:
        has_stepped: Whether it has made a step since this was set to False.
        before_step: Called before each step moves parameters.
    """

    moves_in_steps = True

    def __init__(self, value: Any) -> None:
        """Takes the optimizer, and saves its state."""
        self.has_stepped = False
        self.before_step: Callable[[], object] = lambda: None
        self._watch(value)
        super().__init__(value)

    def restore(self) -> None:
        """Gives the optimizer the state that was saved last.

        torch's optimizers go on with the tensors that they load, so they get copies.
        """
        load_in_place(self.value, copy.deepcopy(self._saved))

    def sync(self) -> None:
        """Gives the optimizer the state of rank `source`."""
        broadcast_optimizer_state(self.value, root_rank=self.source)

    def set_value(self, value: Any) -> None:
        """Takes another optimizer in its place, and saves its state."""
        self._watch(value)
        super().set_value(value)

    def parts(self) -> tuple[Any, list[torch.Tensor]]:
        """Returns the state without its large tensors, and these."""
        state = self.value.state_dict()
        about, tensors = take_apart(state, describe)
        fill_gradients(self.value, state)
        return about, [it for it in tensors if is_large(it)]

    def targets(self, about: Any) -> list[torch.Tensor]:
        """Returns new tensors, with which the optimizer will go on where it is on the CPU."""
        self._arriving, tensors = put_together(about, make)
        return [it for it in tensors if is_large(it)]

    def arrive(self) -> None:
        """Gives the optimizer what has arrived."""
        state = self._arriving
        del self._arriving
        load_in_place(self.value, state)
        fill_gradients(self.value, state)

    def _watch(self, value: Any) -> None:
        value.register_step_pre_hook(lambda *_: self.before_step())
        value.register_step_post_hook(self._note_step)

    def _note_step(self, *_: Any) -> None:
        self.has_stepped = True


class LocalStepsHandler(OptimizerStateHandler):
    """Handles a `LocalSteps`, whose workers have weights of their own."""

    moves_models = True

    def sync(self) -> None:
        """Gives all workers the weights of an outer step, which leaves out those that are new."""
        self.value.take_over(self.source)


class SamplerStateHandler(StateHandler):
    """Handles an `ElasticSampler`."""

    def reset(self) -> None:
        """Deals what is left among the ranks of the next world, whose state it may keep."""
        self.value.load_state_dict(self.value.state_dict())


_registry: list[tuple[type, type[StateHandler]]] = [
    (torch.nn.Module, ModelStateHandler),
    (LocalSteps, LocalStepsHandler),
    (torch.optim.Optimizer, OptimizerStateHandler),
    (ElasticSampler, SamplerStateHandler),
    (torch.optim.lr_scheduler.LRScheduler, StateHandler),
]


def get_handler_registry() -> list[tuple[type, type[StateHandler]]]:
    """Returns which class handles values of which type; the first type that fits counts."""
    return _registry


def set_handler_registry(registry: list[tuple[type, type[StateHandler]]]) -> None:
    """Replaces what `get_handler_registry()` returns, for states that are made from now on."""
    global _registry
    _registry = registry


class TorchState(ObjectState):
    """Models, optimizers, schedulers, samplers and Python objects as attributes.

    Assigning another model, optimizer, scheduler or sampler to such an attribute saves its state.
    Assigning to any other attribute does not.
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
        self._travelling: list[tuple[torch.Tensor, int]] = []  # With what they were.
        objects = {name: value for name, value in values.items() if name not in self._handlers}
        super().__init__(bcast_object=broadcast_object, get_rank=basics.rank, **objects)
        for handler in self._handlers.values():
            if isinstance(handler, OptimizerStateHandler):
                handler.before_step = self._finish_passing_on

    def save(self) -> None:
        """Keeps copies of the states of models, optimizers and samplers, and the objects.

        Raises:
            HorovodInternalError: A rank failed before GPUs had finished what was synchronized; what
                was saved before stays.
        """
        _world.finish()
        for handler in self._handlers.values():
            handler.save()
        super().save()

    def restore(self) -> None:
        """Goes back to what was saved last."""
        self._finish_passing_on()
        for handler in self._handlers.values():
            handler.restore()
        super().restore()

    def reset(self) -> None:
        """Prepares for another world, in which nobody may be new, so that nothing is synced."""
        for handler in self._handlers.values():
            handler.reset()

    def sync(self) -> None:
        """Takes over rank 0's state, and saves it. Collective.

        Horovod's does not save, so that a rank which came later, and is left alone before it
        commits, would go back to the model that it was started with.
        """
        for handler in sorted(self._handlers.values(), key=lambda it: not it.moves_models):
            handler.source = self._source
            handler.sync()
            if not (self._rolls_forward and handler.moves_in_steps):
                handler.save()
        super().sync()

    def can_pass_on(self) -> bool:
        """Returns whether `pass_on` may be called: not where a `sync` is somebody else's."""
        handlers = self._handlers.values()
        is_own = getattr(self.sync, "__func__", None) is TorchState.sync
        return is_own and all(type(it) in _OWN_HANDLERS for it in handlers)

    def _parts(self) -> tuple[bytes, list[Array]]:
        """Returns what is small, pickled, and the bytes of large parameters and their like."""
        abouts, arrays = {}, []
        for name, handler in sorted(self._handlers.items()):
            abouts[name], tensors = handler.parts()
            arrays += [as_bytes(tensor).numpy() for tensor in tensors]
            self._travelling += [(tensor, _changes_of(tensor)) for tensor in tensors]
        file = io.BytesIO()
        torch.save((abouts, super()._parts()[0]), file)
        return file.getvalue(), arrays

    def _finish_passing_on(self) -> None:
        """Waits until newcomers have the state that is about to change."""
        super()._finish_passing_on()
        travelling, self._travelling = self._travelling, []
        if any(_changes_of(tensor) != changes for tensor, changes in travelling):
            msg = (
                "parameters were changed while a newcomer took them over: a training function "
                "changes them by optimizer.step(), or after its first step or commit"
            )
            raise HorovodInternalError(msg)

    def _targets(self, about: bytes) -> list[Array]:
        """Returns where the bytes are to arrive."""
        # From a rank of this job.
        abouts, objects = torch.load(io.BytesIO(about), map_location="cpu", weights_only=False)
        tensors = [
            tensor
            for name, handler in sorted(self._handlers.items())
            for tensor in handler.targets(abouts[name])
        ]
        super()._targets(objects)
        return [as_bytes(tensor).numpy() for tensor in tensors]

    def _arrive(self) -> None:
        """Takes over what has arrived, and saves it."""
        for handler in self._handlers.values():
            handler.arrive()
            if not (self._rolls_forward and handler.moves_in_steps):
                handler.save()
        super()._arrive()

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


def _changes_of(tensor: torch.Tensor) -> int:
    """Returns how often a tensor was changed in place, as far as torch knows."""
    return tensor._version  # noqa: SLF001  torch's name for it


_OWN_HANDLERS = (StateHandler, ModelStateHandler, OptimizerStateHandler, SamplerStateHandler)


def _handler_of(value: Any) -> StateHandler | None:
    for kind, handler in _registry:
        if isinstance(value, kind):
            return handler(value)
    return None
