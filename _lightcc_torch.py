"""What torch loads when it is imported, so that it knows the backend `lightcc`.

torch calls the entry points of the group "torch.backends" in every program that imports it. So
this module stands beside the package. The package is imported only where a group asks for it.
"""

from __future__ import annotations

from typing import Any


def register() -> None:
    """Makes torch.distributed know the backend. Does nothing where it does already."""
    import torch.distributed as dist

    if not dist.is_available() or hasattr(dist.Backend, "LIGHTCC"):
        return
    plugins: Any = getattr(dist.Backend, "_plugins", None)
    dist.Backend.register_backend("lightcc", _create, extended_api=True, devices=["cpu", "cuda"])
    if type(plugins) is dict and _NAME in plugins:
        dist.Backend._plugins = _Unlisted(plugins)  # noqa: SLF001


class _Unlisted(dict[str, Any]):
    """torch's table of backends, in which lightcc is found but not listed.

    torch looks at the first listed backend where a group names devices. A group of "cpu:gloo" then
    has no default backend, in every program of an environment that has any such backend.
    """

    def __init__(self, plugins: dict[str, Any]) -> None:
        super().__init__(plugins)
        self._lightcc = self.pop(_NAME)

    def __contains__(self, name: object) -> bool:
        return name == _NAME or super().__contains__(name)

    def __missing__(self, name: str) -> Any:
        if name == _NAME:
            return self._lightcc
        raise KeyError(name)


_NAME = "LIGHTCC"


def _create(options: Any, backend_options: Any) -> Any:
    from lightcc.torch.distributed import create

    return create(options, backend_options)
