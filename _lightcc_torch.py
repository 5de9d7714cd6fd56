"""What torch loads when it is imported, so that it knows the backend `lightcc`.

torch calls the entry points of the group "torch.backends" in every program that imports it. So
this module stands beside the package. The package is imported only where a group asks for it.
"""

from __future__ import annotations

from typing import Any


def register() -> None:
    """Makes torch.distributed know the backend. Does nothing where it does already."""
    import torch.distributed as dist

    if dist.is_available() and not hasattr(dist.Backend, "LIGHTCC"):
        dist.Backend.register_backend("lightcc", _create, extended_api=True, devices=["cpu"])


def _create(options: Any, backend_options: Any) -> Any:
    from lightcc.torch.distributed import create

    return create(options, backend_options)
