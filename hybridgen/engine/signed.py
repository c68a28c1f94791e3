"""What ranks of a joined job hand each other in the store: JSON, signed with their secret. No torch.

Waits have no limit and take no CPU time. None of them is a collective, so no data group knows of them.
"""

from __future__ import annotations

import hashlib
import hmac
from datetime import timedelta
from typing import Any

from hybridgen.distributed.data import packed, unpacked
from hybridgen.distributed.place import JoinedRank
from hybridgen.engine import environment
from hybridgen.errors import RunFailed

TURN = timedelta(hours=12)
"""Time after which a wait for the store begins anew."""


def signed(here: JoinedRank, thing: Any) -> bytes:
    """A thing as JSON, signed with the ranks' secret."""
    data = packed(thing)
    return _signature(here, data) + data


def verified(here: JoinedRank, sent: bytes, like: Any) -> Any:
    """The thing that was signed; `like` as for unpacked().

    Raises RunFailed (launcher) where it is not signed with the ranks' secret, or is something else than expected.
    """
    size = len(_signature(here, b""))
    if not hmac.compare_digest(sent[:size], _signature(here, sent[size:])):
        raise RunFailed("launcher", f"the job in the store is not signed with this rank's {environment.SECRET}")
    try:
        return unpacked(sent[size:], like)
    except ValueError as error:
        raise RunFailed("launcher", f"the store holds something else than a job: {error}") from error


def _signature(here: JoinedRank, data: bytes) -> bytes:
    """What only a rank with the secret can make of the data."""
    return hmac.digest(here.secret.encode(), data, hashlib.sha256)


def await_key(store: Any, key: str) -> bytes:
    """The value of a key, once it is there. Raises RuntimeError where the store is gone."""
    from torch.distributed import DistNetworkError, DistStoreError

    while True:
        try:
            store.wait([key], TURN)
            return bytes(store.get(key))
        except DistNetworkError:
            raise
        except DistStoreError:
            continue  # nothing has come in this turn
