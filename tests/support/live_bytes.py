"""How much memory tensors take while code runs, on any device, the meta device included."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of storages that are alive beside the known ones; those that are held count from the start."""

    peak: int
    """The most there were at once."""

    def __init__(self, held: Sequence[Tensor], known: Sequence[Tensor] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = self.peak = 0
        self.seen = {x.untyped_storage()._cdata for x in known}
        self.add(held)

    def add(self, tensors: Sequence[Any]) -> None:
        for storage in (x.untyped_storage() for x in tensors if isinstance(x, Tensor)):
            key, size = storage._cdata, storage.nbytes()
            if key not in self.seen:
                self.seen.add(key)
                self.live += size
                self.peak = max(self.peak, self.live)
                weakref.finalize(storage, self.gone, key, size)

    def gone(self, key: int, size: int) -> None:
        self.seen.discard(key)
        self.live -= size

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        self.add(tree_leaves(out))
        return out
