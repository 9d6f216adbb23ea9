"""The forward pass: a module and its training data in, its last layer and what to say of it out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from noshadow.curvature import Size
from noshadow.errors import InputError, name_rows
from noshadow.extract.found import Extracted, Options
from noshadow.extract.torch.batches import Batch, Signature, split
from noshadow.extract.torch.kinds import choose_head, choose_target
from noshadow.extract.torch.layers import coefficients, is_linear, is_linear_in
from noshadow.extract.torch.loaders import read, told
from noshadow.extract.torch.matching import Match, best_match, find_head, named_outputs, settled
from noshadow.extract.torch.watching import reading, require_readable, unwrapped, watch
from noshadow.layer import LastLayer
from noshadow.memory import require_free_memory
from noshadow.objective import Objective, ridge_of_weight_decay
from noshadow.optimizers import read_optimizer
from noshadow.progress import progress_bar

__all__ = ["Pass", "extract_torch", "require_layer"]


def extract_torch(
    model: nn.Module,
    data: Any,
    objective: Objective,
    options: Options = Options(),  # noqa: B008  it is frozen, and may be shared
) -> Extracted:
    """One forward pass over the data in the dataset's order, in eval mode, without gradients.

    weight_decay λ, on a mean loss, becomes Λ = nλ and the like (``ridge_of_weight_decay``); ridge gives Λ itself.
    Of the options, ``layer`` and ``output`` choose among several heads; ``fits`` is told the size of the head after the
    first batch, where it is known; with ``cache`` what the layer sees and gives is kept in a folder, from which an
    interrupted pass goes on (``noshadow.extract.torch.caching``), made by tasks of Ray with that ``engine``.
    """
    network = unwrapped(model)
    require_readable(network)
    require_layer(network, options.layer)
    signature = Signature.of(network)
    source = read(data, options.batch_size, signature)

    def size_known(n: int, columns: int, outputs: int) -> None:
        if objective.head is not None:  # otherwise only the targets say which it is
            options.fits(Size(n, columns, outputs, objective.head))

    chosen = (network, signature, source.total, options.layer, options.output, size_known)
    seen, cached = Pass(*chosen), None
    if options.cache is not None:
        from noshadow.extract.torch.caching import CachedPass  # files are not for a pass in memory

        seen = cached = CachedPass(*chosen, folder=options.cache, dtype=options.cache_dtype)
    with reading(network), progress_bar("Extracting", source.total, options.progress) as advance:
        if cached is not None and options.engine == "ray":
            from noshadow.extract.torch.elsewhere import add_shards

            add_shards(cached, source, options.address, advance)
        else:
            for batch in source.batches:
                advance(seen.add(batch))
    return seen.extracted(objective, type(network).__name__, source.notes)


class Pass:
    """What is collected of the head, batch by batch."""

    compared: int | None = None
    """Records of a batch whose outputs are held against features times weights; None: all."""

    def __init__(
        self,
        model: nn.Module,
        signature: Signature,
        total: int | None,
        layer: str | None,
        output: str | int | None,
        fits: Callable[[int, int, int], object] = lambda *_: None,
    ) -> None:
        self.model, self.signature, self.total = model, signature, total
        self.layer, self.output, self.fits = layer, output, fits
        # the first that is neither an index nor packed: inputs go where it is, in its precision
        anchor = next((p for p in model.parameters() if p.is_floating_point() and p.element_size() > 1), torch.zeros(0))
        self.device, self.dtype = anchor.device, anchor.dtype
        self.head: nn.Module | None = None
        self.theta = torch.zeros(0)
        self.activations: frozenset[str] = frozenset()
        self.rows, self.batches = 0, 0
        self.features, self.outputs = _Rows(total), _Rows(total)
        self.targets: dict[str, _Rows] = {}
        self.notes: dict[str, None] = {}

    def add(self, raw: Any) -> int:
        """Run a batch and keep its rows; the number of its records."""
        batch = split(raw, self.signature).placed(self.device, self.dtype)
        self.notes |= dict.fromkeys(batch.notes)
        x, z = self._checked(batch)
        self.features.add(x.cpu())
        return self._keep(batch, z)

    def _checked(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Features and outputs of the layer for a batch: what it gave is its input times its weights."""
        match = self._run(batch)
        x, z = match.x, match.z
        assert x is not None
        if not is_linear_in(x[: self.compared], z[: self.compared], self.theta) and bool(torch.isfinite(z).all()):
            raise InputError(
                f"model: what layer {self.layer!r} gave for {self._where(batch)} is not its input times its weights: "
                f"it is a {type(self.head).__name__} that does more, or a tensor was changed in place after the call; "
                "build a LastLayer from arrays"
            )
        return x, z

    def _keep(self, batch: Batch, z: Tensor) -> int:
        """Keep outputs and targets of a batch; the number of its records."""
        self.outputs.add(z.cpu())
        for name, values in batch.candidates.items():
            self.targets.setdefault(name, _Rows(self.total)).add(values.cpu())
        self.rows, self.batches = self.rows + batch.count, self.batches + 1
        return batch.count

    def _run(self, batch: Batch) -> Match:
        named = None if self.layer is None else self.model.get_submodule(self.layer)
        with watch(self.model, self.head or named) as calls:
            outputs = named_outputs(self._call(batch), batch.count, self.output)
        if self.head is not None:
            (result,) = outputs.values()
            match = best_match(calls, result, batch.count)
            kept = frozenset() if match is None else self.activations & match.activations
            if match is None or match.x is None or not kept:
                self._require_finite(batch, outputs)
                raise InputError(
                    f"model: its outputs for {self._where(batch)} are not those of layer {self.layer!r}, as they were "
                    "for the batches before; noshadow needs the same last layer for all records"
                )
            self.activations = kept
        else:
            try:
                self.output, match = find_head(calls, outputs, batch.count, self.layer)
            except InputError:
                self._require_finite(batch, outputs)
                raise
            self._found(match)
        if match.doubtful:
            match = settled(match, lambda: self._output_of(batch))
        return match

    def _found(self, match: Match) -> None:
        self.head, self.layer, self.activations = match.call.module, match.call.name, match.activations
        self.theta = coefficients(self.head)
        if self.total is not None and match.x is not None:
            self._require_memory(self.total, match.x, match.z)
            self.fits(self.total, match.x.shape[1] + int(isinstance(self.head.bias, Tensor)), match.z.shape[1])

    def _require_memory(self, n: int, x: Tensor, z: Tensor) -> None:
        p, m = x.shape[1], z.shape[1]
        require_free_memory(
            n * (p * x.element_size() + m * (z.element_size() + 8)),
            f"data: what the last layer sees and gives for {n:,} records ({p:,} features, {m:,} outputs)",
            "keep it on disk with cache=, or audit a part of the records with torch.utils.data.Subset",
        )

    def _output_of(self, batch: Batch) -> Tensor:
        (result,) = named_outputs(self._call(batch), batch.count, self.output).values()
        return result

    def _call(self, batch: Batch) -> Any:
        try:
            return self.model(*batch.args, **batch.kwargs)
        except InputError:
            raise
        except Exception as error:
            remedy = "; pass a smaller batch_size=" if "out of memory" in str(error).lower() else ""
            if len(batch.args) == 1 and isinstance(batch.args[0], Mapping):
                columns = ", ".join(map(repr, batch.args[0]))
                remedy = f"; it was given the columns {columns} as one dictionary: give its input the argument's name"
            raise InputError(f"model: its forward failed on {self._where(batch)}: {told(error)}{remedy}") from error

    def _where(self, batch: Batch) -> str:
        return f"batch {self.batches} (records {self.rows} to {self.rows + batch.count - 1}, counted from 0)"

    def _require_finite(self, batch: Batch, outputs: Any) -> None:
        """NaN equals nothing, so it looks like a layer that disagrees: name it instead."""
        for name, result in outputs.items():
            if not (result.ndim and len(result) == batch.count and bool(torch.isnan(result).any())):
                continue
            called = "outputs" if name is None else f"output {name!r}"
            inputs = batch.rows_not_finite()
            if inputs:
                rows = name_rows([self.rows + row for row in inputs])
                raise InputError(
                    f"data: the inputs hold NaN or infinite values in {rows} (counted from 0), so the model's {called} "
                    "are NaN; drop or impute those records before training and auditing"
                )
            bad = torch.isnan(result.reshape(batch.count, -1)).any(1).nonzero().flatten().tolist()
            rows = name_rows([self.rows + row for row in bad])
            raise InputError(
                f"model: its {called} are NaN in {rows} (counted from 0) although the inputs are finite; the model "
                f"diverged, or overflows in {str(self.dtype).removeprefix('torch.')}"
            )

    @property
    def activation(self) -> str:
        """What the layer's outputs went through before the model returned them."""
        return next(name for name in ("identity", "sigmoid", "softmax", "log_softmax") if name in self.activations)

    def collected(self) -> tuple[Tensor, Tensor, str | None]:
        """Outputs and targets of all records, and a note on which element of the records is the target."""
        self._require_all_rows()
        z = self.outputs.all()
        return z, *choose_target({name: rows.all() for name, rows in self.targets.items()}, z, self.signature)

    def _require_all_rows(self) -> None:
        if self.head is None:
            raise InputError("data: it has no records")
        if self.total is not None and self.rows != self.total:
            raise InputError(
                f"data: {self.rows} rows came out of {self.total} records; pass a loader whose collate_fn keeps each "
                "record once"
            )

    def made(self, z: Tensor, target: Tensor, **facts: Any) -> LastLayer:
        """The layer of all that was collected."""
        return LastLayer(self.features.all(), z, target, **facts)

    def extracted(self, objective: Objective, source: str, notes: tuple[str, ...]) -> Extracted:
        z, target, note = self.collected()
        assert self.head is not None
        head, where = choose_head(self.model, z, target, self.activation, objective)
        bias = isinstance(self.head.bias, Tensor)
        decay = None if objective.optimizer is None else read_optimizer(objective.optimizer, self.head)
        if decay is not None and objective.ridge is None:
            objective = objective.with_decay(decay.weight_decay)
        found = self.made(
            z,
            target,
            head=head,
            ridge=ridge_of_weight_decay(objective, head, z, target) if objective.ridge is None else objective.ridge,
            bias=bias,
            penalize_bias=decay is None or decay.on_bias is not False,
            coefficients=self.theta,
            sample_weight=objective.sample_weight,
            class_weight=objective.class_weight,
            label_smoothing=objective.label_smoothing or 0.0,
        )
        facts = {
            "layer": self.layer or source,
            "layer_shape": [z.shape[1], self.theta.shape[0] - int(bias)],
            "output": self.output,
            "head_from": where,
            "optimizer": None if decay is None else decay.optimizer,
        }
        frozen = not any(value.requires_grad for value in self.head.parameters(recurse=False))
        said = [*notes, *self.notes, *([note] if note else []), *([_frozen(facts["layer"])] if frozen else [])]
        return Extracted(found, source, facts=facts, notes=tuple(said))


class _Rows:
    """Rows of one array, put in place where their number is known, so that they are never held twice."""

    def __init__(self, total: int | None) -> None:
        self.total, self.filled = total, 0
        self.shape: torch.Size | None = None
        self.parts: list[Tensor] = []
        self.whole: Tensor | None = None

    def add(self, part: Tensor) -> None:
        shape = part.shape
        if self.shape is None:
            self.shape = shape[1:]
            if self.total is not None:
                self.whole = part.new_empty((self.total, *self.shape))
        end = self.filled + shape[0]
        if shape[1:] != self.shape or (self.total is not None and end > self.total):
            raise InputError(
                f"data: a batch of shape {tuple(part.shape)} after {self.filled} of {self.total or 'the'} records does "
                "not add up to a row per record; pass a loader whose collate_fn keeps each record once"
            )
        if self.whole is None:
            self.parts.append(part)
        else:
            self.whole[self.filled : end] = part
        self.filled = end

    def all(self) -> Tensor:
        return torch.cat(self.parts) if self.whole is None else self.whole[: self.filled]


def require_layer(model: nn.Module, layer: str | None) -> None:
    if layer is None:
        return
    modules = dict(model.named_modules())
    if layer not in modules or not is_linear(modules[layer]):
        linear = ", ".join(repr(name) for name, module in modules.items() if is_linear(module))
        what = "is not linear" if layer in modules else "is not there"
        raise InputError(f"layer: {layer!r} {what}; the model's linear layers are {linear or 'none'}")


def _frozen(name: Any) -> str:
    return (
        f"model: layer {name!r} is frozen (requires_grad=False); if it was so during training, these records did not "
        "shape it and the scores do not apply to them"
    )
