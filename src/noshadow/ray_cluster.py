"""A Ray cluster to work on: one started here and stopped again, or one that exists. Needs the extra ``[ray]``."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any

from noshadow.errors import InputError, missing_extra
from noshadow.import_paths import import_path

__all__ = ["RETRIES_OF_LOST_WORKERS", "RayCluster", "first_line"]

RETRIES_OF_LOST_WORKERS = 3


class RayCluster:
    """The cluster that this process is connected to, if it is; otherwise, for ``address=None``, a local one of so many
    cores, whose workers import from where this process does, or the one at the address. What was connected here is
    left again by :meth:`close`.

    ``ray`` is the package, which nothing else imports; ``cores`` how many the cluster has.
    """

    def __init__(self, address: str | None, cores: int | None) -> None:
        try:
            import ray
        except ImportError as error:
            raise missing_extra("ray", "ray") from error
        self.ray: Any = ray
        self._connected_here = not ray.is_initialized()
        if self._connected_here and address is None:
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray would ask where it runs, and tell its makers
            ray.init(
                address="local",
                num_cpus=cores,
                include_dashboard=False,
                logging_level=logging.ERROR,
                log_to_driver=False,
                runtime_env={"env_vars": {"PYTHONPATH": import_path()}},
            )
        elif self._connected_here:
            try:
                ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False)
            except Exception as error:  # Ray has several
                raise InputError(f"address: no Ray cluster answers at {address} ({first_line(error)})") from error
        self.cores = max(1, int(self.ray.cluster_resources().get("CPU", 1)))

    def task(self, function: Callable[..., Any], cores: int) -> Any:
        """The function as a task of so many cores, done again elsewhere where its worker is lost."""
        return self.ray.remote(num_cpus=cores, max_retries=RETRIES_OF_LOST_WORKERS)(function)

    def close(self) -> None:
        if self._connected_here:
            self.ray.shutdown()


def first_line(error: BaseException) -> str:
    """The kind of an error and the beginning of what it says: Ray's go on for pages."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {(lines or ['no message'])[0][:200]}"
