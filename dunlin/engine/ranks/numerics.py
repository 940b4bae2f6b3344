"""The numerics of one of several ranks: tokens that rank 0 has chosen, and pieces that are alike at all ranks."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from dunlin.engine.decoder.numerics import Choose, Numerics
from dunlin.engine.decoder.sampling.sampling import Choices, HostChoices, SampledToken, SamplingInput
from dunlin.engine.ranks.collective import Collective

NO_TOKEN = -1


def rank_numerics(numerics: Numerics, collective: Collective, on_device: bool = False) -> Numerics:
    """The same arithmetic; linear work is cut by counts, for the ranks' clocks differ. `on_device`: tokens are chosen
    there (`choose_on_device`).
    """
    if collective.ranks == 1:
        return numerics
    if on_device:
        choose = _leading_there(numerics.choose, collective) if not collective.rank else _following_there(collective)
    else:
        choose = _leading(numerics.choose, collective) if not collective.rank else _following(collective)
    return replace(numerics, choose=choose, has_fixed_pieces=True)


def _leading(choose: Choose, collective: Collective) -> Choose:
    def choose_and_tell(logits: Tensor, draws: Sequence[SamplingInput]) -> Choices:
        chosen = choose(logits, draws).read()
        tokens = [NO_TOKEN if each is None else each.token for each in chosen]
        collective.all_gather(torch.tensor(tokens, dtype=torch.int64))
        return HostChoices(chosen)

    return choose_and_tell


def _following(collective: Collective) -> Choose:
    def choose(_: Tensor, draws: Sequence[SamplingInput]) -> Choices:
        told = collective.all_gather(torch.zeros(len(draws), dtype=torch.int64))[0].tolist()
        return HostChoices([None if token == NO_TOKEN else SampledToken(token) for token in told])

    return choose


def _leading_there(choose: Choose, collective: Collective) -> Choose:
    """The host reads them later, as every rank does."""

    def choose_and_tell(logits: Tensor, draws: Sequence[SamplingInput]) -> Choices:
        chosen = choose(logits, draws)
        collective.all_gather(chosen.chosen)  # type: ignore[attr-defined]
        return chosen

    return choose_and_tell


def _following_there(collective: Collective) -> Choose:
    from dunlin.engine.decoder.sampling.device_sampling import DeviceChoices  # takes Triton

    def choose(logits: Tensor, draws: Sequence[SamplingInput]) -> Choices:
        nothing = torch.zeros(2, len(draws), dtype=torch.int64, device=logits.device)
        return DeviceChoices(logits, draws, collective.all_gather(nothing)[0])

    return choose
