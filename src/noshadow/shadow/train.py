"""TorchTrainer: a ``train`` callable from a model factory, data and a recipe, alone or many at once.

    trainer = TorchTrainer(lambda: MLP(), (x, y), Recipe(epochs=300, batch_size=32), head="squared")
    outputs = trainer(members, seed)                          # one model
    list_of_outputs = trainer.train_many([members, ...], [seed, ...])   # the same models, stacked

Both run the same loop on the same random streams: a model's initial weights, batch order, augmentation and
dropout come from its own seed and from nothing else. Stacked and single training therefore give the same
models up to the rounding of differently ordered sums.
"""

from __future__ import annotations

import copy
import functools
import math
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import Dataset

from noshadow.errors import InputError
from noshadow.heads import get_head, make_head
from noshadow.heads.targets import check_targets
from noshadow.shadow.fingerprint import describe_parts
from noshadow.shadow.networks import (
    DropoutSite,
    Network,
    SingleNetwork,
    StackedNetwork,
    draw_masks,
    find_dropouts,
    seed_dropouts,
)
from noshadow.shadow.recipe import ELEMENTWISE_OPTIMIZERS, Loss, Recipe
from noshadow.shadow.recording import Recorder, Recording
from noshadow.shadow.work import Members, advance, limited_threads

__all__ = ["LARGEST_STACK", "MASKS_A_DRAW", "SLOW_STEP", "STACK_SIZES", "TRAINER", "WORTH_IT", "TorchTrainer"]

STACK_SIZES = (8, 16, 32, 64)
SLOW_STEP = 0.01  # seconds: such a step is all arithmetic, and stacking only saves the cost of calls
LARGEST_STACK = 2**26  # numbers in the parameters of a stack that is tried out
WORTH_IT = 0.9  # a stack must take less than this share of the time to be preferred
MASKS_A_DRAW = 2**18  # dropout numbers a model draws in one go
_RANDOMNESS = threading.RLock()  # the global generator belongs to all threads
TRAINER = 2  # raised when the same seed gives other models, or a record keeps something else, than before


class TorchTrainer:
    """Trains torch modules for a ``Study``.

    Parameters
    ----------
    model : callable
        A function without arguments that gives a new, freshly initialised module.
    data : (inputs, targets) or Dataset
        Tensors or arrays with a row per record, or a map-style Dataset of pairs.
    recipe : Recipe
        How a model is trained.
    head : "squared", "logistic" or "softmax"
        The training loss.
    loss : callable, optional
        A function (outputs, targets) -> mean loss of a batch, in place of the head's.
    vectorise : bool or int, optional
        None: stack models if the modules allow it and a short trial says it is faster; False: never; True: in the
        fastest stack; a number: that many at once.
    device : str
        Where to train.
    record : Recording, optional
        Keep more than the final outputs; models are then trained one by one.

    Examples
    --------
    >>> import torch
    >>> from noshadow import shadow
    >>> data = torch.randn(30, 4), torch.randint(3, (30,))
    >>> train = shadow.TorchTrainer(lambda: torch.nn.Linear(4, 3), data, shadow.Recipe(epochs=2, batch_size=10))
    >>> train([0, 1, 2, 3, 4], seed=0).shape
    (30, 3)
    """

    def __init__(
        self,
        model: Callable[[], nn.Module],
        data: tuple[Any, Any] | Dataset[Any],
        recipe: Recipe,
        *,
        head: str = "softmax",
        loss: Loss | None = None,
        vectorise: bool | int | None = None,
        device: str = "cpu",
        record: Recording | None = None,
    ) -> None:
        self.model = model
        self.recipe = recipe
        self.head = head
        self.loss = loss
        self._mean_loss = get_head(head).training_loss if loss is None else loss
        self.vectorise = vectorise
        self.device = device
        self.record = record
        inputs, targets = data if isinstance(data, tuple) else _rows_of(data)
        self.inputs = _floats_or_codes(inputs, "data inputs").to(device)
        self.targets = _floats_or_codes(targets, "data targets").to(device)
        if len(self.inputs) != len(self.targets):
            raise InputError(f"data: {len(self.inputs)} inputs but {len(self.targets)} targets")
        self._sites, outputs = find_dropouts(self._new_module(0, ()), self.inputs[:2])
        if loss is None:
            self.targets = _fitting_targets(outputs, self.targets, head)

    def __call__(self, members: Members, seed: int) -> NDArray[Any] | dict[str, NDArray[Any]]:
        """Outputs (N, m) for all records of one model trained on ``members``; with a record, all that it names."""
        if self.record is not None:
            return self._recorded(self.record, members, seed)
        return self._trained(self._single_network(seed), [members], [seed])[0]

    def train_many(self, members: Sequence[Members], seeds: Sequence[int]) -> list[Any]:
        """Outputs (N, m) of each model. Models with equally many members are trained as one stack.

        Examples
        --------
        >>> import torch
        >>> from noshadow import shadow
        >>> data = torch.randn(30, 4), torch.randint(3, (30,))
        >>> train = shadow.TorchTrainer(lambda: torch.nn.Linear(4, 3), data, shadow.Recipe(epochs=2, batch_size=5))
        >>> together = train.train_many([range(0, 15), range(15, 30)], seeds=[0, 1])
        >>> [outputs.shape for outputs in together]
        [(30, 3), (30, 3)]
        """
        by_size: dict[int, list[int]] = defaultdict(list)
        for position, model_members in enumerate(members):
            by_size[len(model_members)].append(position)
        results: dict[int, Any] = {}
        for positions in by_size.values():
            rows, own = [members[i] for i in positions], [seeds[i] for i in positions]
            if len(positions) > 1 and self.record is None and self._obstacle is None:
                outputs: list[Any] = self._trained(self._stacked_network(own), rows, own)
            else:
                outputs = [self(*one) for one in zip(rows, own, strict=True)]
            results |= dict(zip(positions, outputs, strict=True))
        return [results[position] for position in range(len(members))]

    def models_at_once(self, most: int = STACK_SIZES[-1]) -> int:
        """How many models to train in one stack, at most ``most``; 1 where stacking is impossible or slower.

        Without a wish in ``vectorise`` it is tried out: a few steps of one model, and of stacks of 8, 16, 32
        and 64, on one thread. A model whose single step takes over 10 ms has nothing to gain: not tried.
        """
        if self.vectorise is False or self.record is not None or most < 2:
            return 1
        if self._obstacle is not None:
            if self.vectorise:
                raise InputError(f"vectorise: these models cannot be trained in a stack: {self._obstacle}")
            return 1
        if not isinstance(self.vectorise, bool | type(None)):
            return min(self.vectorise, most)
        numbers = sum(parameter.numel() for parameter in self._single_network(0).parameters())
        sizes = [size for size in STACK_SIZES if size <= most] or [most]
        sizes = [size for size in sizes if size * numbers <= LARGEST_STACK] or [2]
        with limited_threads(1):
            alone = self._seconds_a_step(1)
            if alone > SLOW_STEP and self.vectorise is None:
                return 1
            times = {size: self._seconds_a_step(size) for size in sizes}
        best = min(times, key=lambda size: times[size])
        return best if self.vectorise or times[best] < WORTH_IT * alone else 1

    def fingerprint(self) -> dict[str, Any]:
        """What is trained on what, how: two trainers with the same fingerprint train the same models."""
        network = self._undrawn_network()
        parts = {
            "model": self.model,
            "network": network,
            "loss": self.head if self.loss is None else self.loss,
            "inputs": self.inputs.cpu().numpy(),
            "targets": self.targets.cpu().numpy(),
            **{f"recipe.{name}": value for name, value in self.recipe.parts().items()},
            **({} if self.record is None else {f"record.{name}": value for name, value in asdict(self.record).items()}),
        }
        found = describe_parts(parts, "train")
        return {**found, "architecture": repr(network).splitlines(), "trainer": TRAINER}

    def for_reruns(self) -> TorchTrainer:
        """The same training for models that are trained a second time: those keep no features and no checkpoints."""
        again = copy.copy(self)
        again.record = None if self.record is None else Recording(checkpoints=0, features=False)
        return again

    def _undrawn_network(self) -> nn.Module:
        """A new module whose random initial weights are zero: what is left is architecture, code and given weights.

        Weights are random if another seed gives others. Left in, they would tie a study to one kind of processor.
        """
        network, other = (self._new_module(seed, ()) for seed in (0, 1))
        others = _tensors(other)
        with torch.no_grad():
            for name, tensor in _tensors(network).items():
                twin = others.get(name)
                if twin is tensor and tensor.requires_grad:
                    raise InputError(
                        f"model: must give a new module at every call, but gave the same parameter {name} twice, "
                        "which each model would go on training; return copy.deepcopy(...) of it"
                    )
                if twin is None or not torch.equal(tensor, twin):
                    tensor.zero_()
        return network

    def _single_network(self, seed: int) -> SingleNetwork:
        return SingleNetwork(self._new_module(seed, self._sites), self._mean_loss)

    def _stacked_network(self, seeds: Sequence[int]) -> StackedNetwork:
        return StackedNetwork([self._new_module(seed, self._sites) for seed in seeds], self._mean_loss)

    def _trained(self, network: Network, members: Sequence[Members], seeds: Sequence[int]) -> list[NDArray[Any]]:
        with _own_randomness(seeds[0], self.device):
            for _ in self._steps(network, members, seeds, self.recipe.epochs):
                pass
            return list(self._outputs(network).numpy())

    def _recorded(self, record: Recording, members: Members, seed: int) -> dict[str, NDArray[Any]]:
        module = self._new_module(seed, self._sites)
        network = SingleNetwork(module, self._mean_loss)
        recorder = Recorder(record, self.recipe.epochs, module, (self.inputs, self.targets), self.head)
        with _own_randomness(seed, self.device):
            for epoch_done in self._steps(network, [members], [seed], self.recipe.epochs):
                if epoch_done:
                    outputs = self._outputs(network)[0]
                    recorder.epoch(outputs)
            return {"outputs": outputs.numpy(), **recorder.arrays()}

    def _steps(self, network: Network, members: Sequence[Members], seeds: Sequence[int], epochs: int) -> Iterator[bool]:
        """The training loop of G models, a step at a time; True after the last step of an epoch."""
        recipe = self.recipe
        optimizer = recipe.build_optimizer(network.parameters())
        rates = [group["lr"] for group in optimizer.param_groups]
        orders, drops = ([torch.Generator().manual_seed(_seeds(seed)[use]) for seed in seeds] for use in (1, 2))
        pool = torch.stack([torch.as_tensor(rows) for rows in members])
        for epoch in range(epochs):
            order = [torch.randperm(pool.shape[1], generator=generator) for generator in orders]
            batches = torch.split(pool.gather(1, torch.stack(order)), recipe.batch_size, dim=1)
            for step, (rows, masks) in enumerate(zip(batches, self._masks(batches, drops), strict=True)):
                factor = recipe.factor((epoch + step / len(batches)) / epochs)
                for group, rate in zip(optimizer.param_groups, rates, strict=True):
                    group["lr"] = rate * factor
                x, y = self.inputs[rows], self.targets[rows]
                if recipe.augment is not None:
                    x = torch.stack([recipe.augment(*pair) for pair in zip(x, orders, strict=True)])
                optimizer.zero_grad(set_to_none=True)
                torch.autograd.backward(network.loss(x, y, masks))
                optimizer.step()
                advance(len(seeds) / (epochs * len(batches)))
                yield step + 1 == len(batches)

    def _masks(self, batches: Sequence[Tensor], drops: Sequence[torch.Generator]) -> Iterator[dict[str, Tensor]]:
        """The dropout masks of each batch, drawn for the whole epoch at once where they are few: fewer calls."""
        sizes = [batch.shape[1] for batch in batches]
        numbers = sum(math.prod(site.shape) for site in self._sites)
        if numbers * sum(sizes) <= MASKS_A_DRAW:
            masks = draw_masks(self._sites, sum(sizes), drops, self.device)
            parts = {name: torch.split(mask, sizes, dim=1) for name, mask in masks.items()}
            yield from ({name: part[step] for name, part in parts.items()} for step in range(len(sizes)))
        else:
            yield from (draw_masks(self._sites, size, drops, self.device) for size in sizes)

    def _outputs(self, network: Network) -> Tensor:
        # As many records at a time as in a training batch: that is known to fit, in memory and in the cache.
        batches = torch.split(self.inputs, self.recipe.batch_size)
        outputs = torch.cat([network.outputs(batch).cpu() for batch in batches], dim=1)
        return outputs if outputs.ndim > 2 else outputs.unsqueeze(-1)

    def _new_module(self, seed: int, sites: Sequence[DropoutSite]) -> nn.Module:
        with _own_randomness(_seeds(seed)[0], self.device):
            module = self.model()
        if not isinstance(module, nn.Module):
            raise InputError(f"model: must give a torch module, gave {type(module).__name__}")
        return seed_dropouts(module.to(self.device), sites)

    @functools.cached_property
    def _obstacle(self) -> str | None:
        """Why these models cannot be stacked, or None: a step of two is tried against single ones."""
        rows = np.arange(min(len(self.inputs), self.recipe.batch_size))
        try:
            if not isinstance(self.recipe.build_optimizer([torch.zeros(1)]), ELEMENTWISE_OPTIMIZERS):
                return "the optimiser does not update each number by itself"
            x, y = self.inputs[rows].expand(2, *self.inputs[rows].shape), self.targets[rows]
            sizes = [(site, (1, len(rows), *site.shape)) for site in self._sites]
            masks = {site.name: torch.ones(size, device=self.device) for site, size in sizes}
            stacked = self._stacked_network([0, 1])
            both = {name: mask.expand(2, *mask.shape[1:]) for name, mask in masks.items()}
            together = stacked.loss(x, y.expand(2, *y.shape), both)
            torch.autograd.backward(together)
            stacked.outputs(x[0, :2])
            with _own_randomness(0, self.device):
                losses = [self._single_network(seed).loss(x, y[None], masks) for seed in (0, 1)]
        except Exception as error:
            return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        if not torch.allclose(together, torch.stack(losses).sum(), rtol=1e-3, atol=1e-5):
            return "a stack does not give the same loss as its models alone"
        return None

    def _seconds_a_step(self, count: int) -> float:
        """Seconds that a training step takes a model of a stack: best of three times 64 such steps.

        Equal work for every size of stack, so that other work on the machine gets in the way of all alike.
        """
        seeds = list(range(count))
        members = [np.arange(0, len(self.inputs), 2)] * count  # any half will do
        network: Network = self._single_network(0) if count == 1 else self._stacked_network(seeds)
        block = max(1, STACK_SIZES[-1] // count)
        with _own_randomness(0, self.device):
            steps = self._steps(network, members, seeds, epochs=4 + 3 * block)  # an epoch has a step or more
            next(steps)  # to warm up
            first = min(_seconds(steps, 1) for _ in range(3))
            if first > SLOW_STEP * count:  # nothing will come of it, so no more time is spent
                return first / count
            return min(_seconds(steps, block) for _ in range(3)) / count


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def _seconds(steps: Iterator[bool], count: int) -> float:
    """Mean seconds of the next steps."""
    start = time.perf_counter()
    for _ in range(count):
        next(steps)
    return (time.perf_counter() - start) / count


@contextmanager
def _own_randomness(seed: int, device: str) -> Iterator[None]:
    """Torch's global generator starts at ``seed`` inside, and is afterwards as it was; one thread at a time."""
    with _RANDOMNESS, torch.random.fork_rng(devices=[] if device == "cpu" else None):
        torch.manual_seed(seed)
        yield


def _seeds(seed: int) -> list[int]:
    """Independent seeds for initial weights, batch order with augmentation, and dropout."""
    return [int(word) for word in np.random.SeedSequence(seed).generate_state(3, np.uint64) >> np.uint64(1)]


def _rows_of(data: Dataset[Any]) -> tuple[Tensor, Tensor]:
    """A map-style dataset as two tensors."""
    if not hasattr(data, "__len__"):
        raise InputError("data: a dataset without a length cannot be split; give (inputs, targets) instead")
    pairs = [data[row] for row in range(len(data))]
    return torch.stack([torch.as_tensor(x) for x, _ in pairs]), torch.stack([torch.as_tensor(y) for _, y in pairs])


def _floats_or_codes(values: Any, name: str) -> Tensor:
    """Real numbers in torch's default type, integers (tokens) as they are."""
    tensor = torch.as_tensor(np.asarray(values) if not isinstance(values, Tensor) else values).detach()
    if tensor.ndim == 0:
        raise InputError(f"{name}: expected a row per record, got a single number")
    return tensor.to(torch.get_default_dtype()) if tensor.is_floating_point() else tensor


def _fitting_targets(outputs: Tensor, targets: Tensor, head: str) -> Tensor:
    """The targets in the head's form, for the outputs of some records.

    The two must not merely broadcast: outputs (n,) against targets (n, 1) would train on all pairs of records.
    """
    given = tuple(outputs.shape[1:])
    kind = make_head(head, given[-1] if given else 1)
    if len(given) != 1:
        raise InputError(f"model: gives outputs of shape (n, *{given}); a {head} head needs (n, m), one row per record")
    if not kind.signals:
        raise InputError(
            f"model: a {head} head needs outputs of shape (n, 1), got (n, *{given}); study several labels one at a time"
        )
    try:
        kind.check_width(*given)
    except InputError as error:
        raise InputError(f"model {error}") from None
    try:
        found = check_targets(kind, targets, len(targets), *given)
    except InputError as error:
        raise InputError(f"data {error}") from None
    return found.to(torch.get_default_dtype()) if found.is_floating_point() else found
