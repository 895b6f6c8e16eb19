"""Figures from samples, with their error."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

NORMAL_95 = 1.96


@dataclass(frozen=True)
class Estimate:
    """A figure from some prompts, with its 95% interval over prompts like them."""

    value: float
    low: float
    high: float
    prompts: int

    @property
    def half(self) -> float:
        """Half of the interval: the ± of the figure."""
        return (self.high - self.low) / 2

    def __str__(self) -> str:
        return f"{self.value:.3f} ± {self.half:.3f}"


def estimate(samples: Float[Tensor, " batch"]) -> Estimate:
    """Mean of independent samples, with its interval."""
    mean, error = float(samples.mean()), float(standard_error(samples))
    return Estimate(mean, mean - NORMAL_95 * error, mean + NORMAL_95 * error, len(samples))


def standard_error(samples: Float[Tensor, "*lead batch"]) -> Float[Tensor, "*lead"]:
    """Standard error of the mean; 0 for a single sample, which says nothing about it."""
    count = samples.shape[-1]
    if count < 2:
        return torch.zeros_like(samples[..., 0])
    return samples.std(-1, correction=1) / math.sqrt(count)
