"""`horovod.data`: data loaders of a program's own, also in the background."""

from __future__ import annotations

from lightcc.horovod.data.data_loader_base import AsyncDataLoaderMixin, BaseDataLoader

__all__ = ["AsyncDataLoaderMixin", "BaseDataLoader"]
