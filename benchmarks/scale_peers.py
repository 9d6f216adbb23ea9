"""kronfluence's self-influence of a linear head, by its own interface: EK-FAC factors, then a score per record."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from scale_heads import Head


class Kronfluence:
    """Raises ImportError where it is not installed. Its damping is Λ/n: it divides the Hessian by n."""

    def __init__(self, head: Head) -> None:
        from kronfluence.analyzer import Analyzer, prepare_model
        from kronfluence.task import Task

        class HeadTask(Task):
            def compute_train_loss(self, batch: Any, model: Any, sample: bool = False) -> Any:
                x, y = batch
                z = model(x)
                if sample:
                    with torch.no_grad():
                        y = torch.multinomial(torch.softmax(z.detach(), -1), 1).flatten()
                return torch.nn.functional.cross_entropy(z, y, reduction="sum")

            def compute_measurement(self, batch: Any, model: Any) -> Any:
                return self.compute_train_loss(batch, model)

        self._n, self._ridge = len(head.features), head.ridge
        self._wide = head.outputs.shape[1] > 200
        linear = torch.nn.Linear(head.features.shape[1], head.outputs.shape[1])
        with torch.no_grad():
            linear.weight.copy_(head.coefficients[:-1].T)
            linear.bias.copy_(head.coefficients[-1])
        self._data = torch.utils.data.TensorDataset(head.features.float(), head.targets)
        self._folder = tempfile.TemporaryDirectory()
        model = prepare_model(torch.nn.Sequential(linear), HeadTask())
        self._analyzer = Analyzer("head", model, HeadTask(), cpu=True, output_dir=self._folder.name, disable_tqdm=True)

    def fit(self, covariances_from: int, eigenvalues_from: int) -> float:
        """Seconds to fit factors: bases on the first records, as many as said, and the eigenvalues in them."""
        from kronfluence.arguments import FactorArguments

        torch.manual_seed(0)
        count = max(covariances_from, eigenvalues_from)
        start = time.perf_counter()
        self._analyzer.fit_all_factors(
            factors_name="factors",
            dataset=torch.utils.data.Subset(self._data, range(count)),
            per_device_batch_size=64 if self._wide else 512,
            factor_args=FactorArguments(
                strategy="ekfac",
                use_empirical_fisher=False,
                covariance_max_examples=covariances_from,
                lambda_max_examples=eigenvalues_from,
            ),
            overwrite_output_dir=True,
        )
        return time.perf_counter() - start

    def score(self, rows: Sequence[int]) -> tuple[np.ndarray, float]:
        """Self-influences gᵀH⁻¹g of some records, and the seconds that they took."""
        from kronfluence.arguments import ScoreArguments

        start = time.perf_counter()
        self._analyzer.compute_self_scores(
            scores_name="scores",
            factors_name="factors",
            train_dataset=torch.utils.data.Subset(self._data, list(map(int, rows))),
            per_device_train_batch_size=16 if self._wide else 256,
            score_args=ScoreArguments(damping_factor=self._ridge / self._n if self._ridge else 1e-8),
            overwrite_output_dir=True,
        )
        seconds = time.perf_counter() - start
        found = self._analyzer.load_self_scores("scores")["all_modules"].numpy().astype(np.float64)
        return found / self._n, seconds
