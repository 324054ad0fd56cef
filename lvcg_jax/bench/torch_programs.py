"""Training and embedding with the PyTorch model, as calls that take turns with compiled JAX
programs."""

import os
from collections.abc import Callable, Mapping

import numpy as np
import torch
from ml_collections import ConfigDict
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from data_prep.base.memory import peak_memory
from data_prep.ecg.leads import LEADS
from lvcg_jax.bench.timing import Measured, reset_peak_memory
from lvcg_jax.bench.torch_model import (
    TorchLVCG,
    load_variables,
    record_losses,
    to_tensors,
    visible_leads,
)
from lvcg_jax.config.inputs import make_subsets
from lvcg_jax.runs.state import make_schedule


def draw_views(available: Tensor, subsets: Tensor, num_visible: int) -> Tensor:
    """The visible lead bit mask of each record [b], as lvcg_jax/model/views.py draws it."""
    size = visible_leads(subsets).sum(-1)
    rivals = torch.bincount(size)[size]  # subsets of the same size
    allowed = (subsets & ~available[:, None]) == 0  # [b,s]
    score = torch.where(allowed, rivals * torch.rand(allowed.shape).log(), -torch.inf)
    has = visible_leads(available)
    ticket = torch.where(has, torch.rand(has.shape), -1.0)
    chosen = has & (ticket >= ticket.topk(num_visible).values[:, -1:])
    some = (chosen << torch.arange(len(LEADS))).sum(-1)
    return torch.where(allowed.any(1), subsets[score.argmax(1)], some)


class TorchTraining:
    """AdamW steps of a model on random views."""

    def __init__(self, model: TorchLVCG):
        config = self.config = model.config
        optim = config.optim
        self.model, self.subsets = model.train(), torch.tensor(make_subsets(config)).long()
        model.rhythm.requires_grad_(config.loss.lambda_rhythm > 0)

        # weight decay for the weights of convolutions and linear layers, or for everything
        self.parameters = [x for x in model.parameters() if x.requires_grad]
        decayed = [x for x in self.parameters if x.ndim > 1 or optim.decay == "all"]
        others = [x for x in self.parameters if x.ndim == 1 and optim.decay != "all"]
        groups = [
            {"params": decayed, "weight_decay": optim.weight_decay},
            {"params": others, "weight_decay": 0.0},
        ]
        betas = (optim.beta1, optim.beta2)
        self.optimizer = torch.optim.AdamW(groups, lr=1.0, betas=betas)
        rates = np.asarray(make_schedule(config)(np.arange(config.train.steps)))
        self.scheduler = LambdaLR(self.optimizer, lambda n: float(rates[min(n, len(rates) - 1)]))
        self.average = None
        if optim.ema_decay:
            average = get_ema_multi_avg_fn(optim.ema_decay)
            self.average = AveragedModel(model, multi_avg_fn=average)

    def step(self, micro_batches: list[dict[str, Tensor]]) -> float:
        """One update; the mean loss of the records."""
        total = 0.0
        self.optimizer.zero_grad()
        for batch in micro_batches:
            views = (batch["lead_mask"], self.subsets, self.config.geometry.num_visible)
            visible = draw_views(*views)
            outputs = self.model(batch, visible)
            terms = record_losses(outputs, batch, visible, self.config.loss)
            loss = terms["loss"].sum() / (batch["num_beats"] > 0).sum().clamp(min=1)
            (loss / len(micro_batches)).backward()
            total += loss.item() / len(micro_batches)
        self.update()
        return total

    def update(self) -> None:
        """Applies the gradients that the parameters have."""
        nn.utils.clip_grad_norm_(self.parameters, self.config.optim.clip_norm)
        self.optimizer.step()
        self.scheduler.step()
        if self.average is not None:
            self.average.update_parameters(self.model)


class TorchProgram(Measured):
    """A call of PyTorch, which runs as it is written: nothing is compiled."""

    def __init__(self, call: Callable[[], object]):
        self.call = call
        reset_peak_memory()
        call()
        self.process_memory = peak_memory()

    def __call__(self) -> object:
        return self.call()


class TorchBaseline:
    """Programs of the PyTorch model, on all cores, from one set of JAX variables."""

    def __init__(self, config: ConfigDict, variables: Mapping, packed: bool):
        torch.set_num_threads(os.cpu_count() or 1)
        self.config, self.variables, self.packed = config, variables, packed
        self.embedder = self._model().eval()

    def _model(self) -> TorchLVCG:
        model = TorchLVCG(self.config, self.packed)
        load_variables(model, self.variables)
        return model

    def train_program(self, batch: Mapping[str, np.ndarray]) -> TorchProgram:
        """Training steps on a padded batch [a,b,...], each from where the one before ended."""
        training = TorchTraining(self._model())
        micro_batches = [
            to_tensors({name: x[k] for name, x in batch.items()})
            for k in range(len(batch["num_beats"]))
        ]
        return TorchProgram(lambda: training.step(micro_batches))

    def embed_program(self, batch: Mapping[str, np.ndarray]) -> TorchProgram:
        """The embedding of a padded batch [b,...]."""
        tensors = to_tensors(batch)

        @torch.inference_mode()
        def embed() -> dict[str, Tensor]:
            return self.embedder.embed(tensors, tensors["lead_mask"])

        return TorchProgram(embed)
