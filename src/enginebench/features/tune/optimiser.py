"""Optuna proposes settings: a sampler that learns which values go with low costs. Imported where it is asked for."""

import math
import warnings
from collections.abc import Iterator, Sequence

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution

from enginebench.features.tune.proposals import Gains, Tried, Walk, find_failed, list_far_arms
from enginebench.features.tune.space import Arm, Setting

# The value of a failed candidate: more than that of any that ran, little enough to compare.
FAILED = math.log(100.0)
# Proposals in a row that were tried before, after which the rest is enumerated.
PATIENCE = 30
ARM = "arm"


class OptunaProposer:
    """Proposes settings by Optuna's tree-structured Parzen estimator over all arms and knobs; `Walk` replaces repeated
    ones.

    The study is rebuilt from the tried settings, so that an interrupted search continues as if it had not been
    interrupted.
    """

    def __init__(self, arms: Sequence[Arm], seed: int, gains: Gains) -> None:
        self._arms, self._seed = arms, seed
        self._walk = Walk(arms, gains)
        self.name = f"optuna {optuna.__version__}"

    def propose(self, count: int, tried: Sequence[Tried]) -> list[Setting]:
        # The nearest neighbours first: an estimator that has seen one setting of each arm draws blindly.
        near = self._walk.propose(count // 2, tried)
        seen = {one.setting.name for one in tried} | {setting.name for setting in near}
        drawn = list(self._draw(count - len(near), tried, seen))
        rest = [s for s in self._walk.propose(count, tried) if s.name not in seen]
        return [*near, *drawn, *rest][:count]

    def _draw(self, count: int, tried: Sequence[Tried], seen: set[str]) -> Iterator[Setting]:
        study = self._make_study(tried)
        failed, far, misses = find_failed(self._arms, tried), list_far_arms(self._arms, tried), 0
        while count and misses < PATIENCE:
            arm, chosen = self._ask(study)
            setting = arm.set(chosen)
            refused = arm in far or arm.dear & chosen.items() or arm.find_core(chosen) in failed
            if setting.name in seen or refused:
                misses += 1
                continue
            seen.add(setting.name)
            count, misses = count - 1, 0
            yield setting

    def _make_study(self, tried: Sequence[Tried]) -> optuna.Study:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # `group` is experimental: knobs of one engine are drawn together
            sampler = optuna.samplers.TPESampler(
                seed=self._seed + len(tried), multivariate=True, group=True, n_startup_trials=len(self._arms)
            )
        study = optuna.create_study(sampler=sampler)
        for one in tried:
            for index, arm in enumerate(self._arms):
                if chosen := arm.read(one.setting):
                    study.add_trial(self._describe(index, chosen, one.cost))
                    break
        return study

    def _describe(self, index: int, chosen: dict[str, str], cost: float | None) -> optuna.trial.FrozenTrial:
        parameters = {ARM: index, **{f"{index}.{name}": value for name, value in chosen.items()}}
        spaces: dict[str, BaseDistribution] = {ARM: CategoricalDistribution(range(len(self._arms)))}
        spaces |= {f"{index}.{name}": CategoricalDistribution(v) for name, v in self._arms[index].knobs.items()}
        value = FAILED if cost is None else math.log(cost)
        return optuna.trial.create_trial(params=parameters, distributions=spaces, value=value)

    def _ask(self, study: optuna.Study) -> tuple[Arm, dict[str, str]]:
        trial = study.ask()
        index = trial.suggest_categorical(ARM, range(len(self._arms)))
        arm: Arm = self._arms[index]
        chosen = {name: trial.suggest_categorical(f"{index}.{name}", values) for name, values in arm.knobs.items()}
        study.tell(trial, state=optuna.trial.TrialState.FAIL)  # its cost is not known yet
        return arm, chosen
