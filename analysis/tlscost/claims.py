"""What a document says of its figures, held against measured ones: `data/claims` is the data.

A claim is an expression over metrics with and without SSL, evaluated at each of its points on the
published figures and on ours by the same code, and bounds that say when it holds.
"""

import itertools
import math
import tomllib
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pandas as pd
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from tlscost import frame, kant, metrics
from tlscost.cell import human_size
from tlscost.dictionary import Formula
from tlscost.errors import TlscostError
from tlscost.machine import NATIVE
from tlscost.paths import root

__all__ = ["Claim", "Judgement", "evaluate", "judge", "judge_records", "read", "to_json"]

Verdict = Literal["holds", "does not hold", "undecided"]

_EXACT = 1e-9  # what arithmetic alone makes of equal values
_SHOWN_OUTSIDE = 3
_NOT_THERE = "not in these records"
_LEVELS: dict[str, tuple[int, ...]] = {
    "size_bytes": kant.SIZES,
    "cpus": kant.CPUS,
    "l2_kib": (2048,),
}


class Claim(BaseModel):
    """One claim; data/claims/kant2000.toml says what the keys mean."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: Annotated[str, Field(pattern=r"^[a-z0-9.-]+$")]
    statement: str
    where: str
    stated: str
    figure: Annotated[
        tuple[str, ...], BeforeValidator(lambda value: [value] if isinstance(value, str) else value)
    ] = ()
    size_bytes: tuple[int, ...] = _LEVELS["size_bytes"]
    cpus: tuple[int, ...] = _LEVELS["cpus"]
    l2_kib: tuple[int, ...] = _LEVELS["l2_kib"]
    along: Literal["size_bytes", "cpus", "l2_kib"] | None = None
    at_least: float = -math.inf
    at_most: float = math.inf
    tolerance: Annotated[float, Field(ge=0, lt=1)] = 0
    share: Annotated[float, Field(gt=0, le=1)] = 1
    undecided: str | None = None
    undecided_simulated: str | None = None
    undecided_native: str | None = None

    @model_validator(mode="after")
    def _decidable(self) -> "Claim":
        bounded = math.isfinite(self.at_least) or math.isfinite(self.at_most)
        if (self.undecided is None) != (bool(self.figure) and bounded):
            raise ValueError(f"claim {self.id}: has a figure and a bound, or says why undecided")
        for formula in self.formulas:  # a wrong expression is refused here
            formula.evaluate(pd.DataFrame(1.0, index=[0], columns=formula.events))
        return self

    @property
    def formulas(self) -> list[Formula]:
        """The figures' expressions, readable by the dictionary's own rules."""
        common = {"unit": "1", "quality": "exact", "why": self.statement}
        return [Formula(name=self.id, formula=text, **common) for text in self.figure]  # type: ignore[arg-type]

    @property
    def metrics(self) -> list[str]:
        """Metrics that the figures take."""
        names = (name.rpartition("_")[0] for formula in self.formulas for name in formula.events)
        return list(dict.fromkeys(names))

    def holds(self, values: "pd.Series[float]") -> "pd.Series[bool]":
        """Whether each figure is within the claim's bounds."""
        low = self.at_least * (1 - self.tolerance) - _EXACT
        high = self.at_most * (1 + self.tolerance) + _EXACT
        return values.between(low, high)


@dataclass(frozen=True)
class Judgement:
    """A claim, its figures on both sides, and what was decided.

    Attributes
    ----------
    published, ours : str or None
        The figures, as a text; None: there are none.
    published_verdict : str
        Whether the claim holds in the document's own tables.
    reason : str
        Why the verdict is what it is.
    figures : list of dict
        One per point and expression: size_bytes, cpus, l2_kib, figure, published, ours, holds.
    """

    id: str
    statement: str
    where: str
    published: str
    ours: str | None
    verdict: Verdict
    reason: str
    published_verdict: Verdict
    figures: list[dict[str, Any]]


def read(path: Path | None = None) -> list[Claim]:
    """Read the claims, by default those of kant2000.

    Raises
    ------
    TlscostError
        The file is not what it should be; the message names the claim and the key.
    """
    path = path or root() / "data" / "claims" / "kant2000.toml"
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
        claims = [Claim.model_validate(table) for table in document["claim"]]
    except (OSError, tomllib.TOMLDecodeError, KeyError, ValidationError) as error:
        raise TlscostError(f"{path}: not a file of claims: {error}") from error
    twice = {claim.id for claim in claims if [one.id for one in claims].count(claim.id) > 1}
    if twice:
        raise TlscostError(f"{path}: claims with the same id: {', '.join(sorted(twice))}")
    return claims


def judge_records(paths: Iterable[Path | str]) -> list[Judgement]:
    """Judge kant2000's claims by records."""
    study = kant.ours(metrics.metrics_of(frame.load(paths)))
    return judge(read(), kant.theirs(), study)


def judge(claims: list[Claim], theirs: pd.DataFrame, ours: pd.DataFrame) -> list[Judgement]:
    """Judge claims.

    Parameters
    ----------
    claims : list of Claim
    theirs, ours : pandas.DataFrame
        Study frames, as `tlscost.kant` gives them.

    Returns
    -------
    list of Judgement
        In the order of the claims.
    """
    return [_judged(claim, theirs, ours) for claim in claims]


def to_json(judgements: Iterable[Judgement]) -> list[dict[str, Any]]:
    """Return the command line's JSON document: null for what is not there."""
    return [asdict(judgement) for judgement in judgements]


def evaluate(claim: Claim, study: pd.DataFrame) -> "pd.Series[float]":
    """Figures of a claim from a study frame.

    Returns
    -------
    pandas.Series, indexed by (figure, size_bytes, cpus, l2_kib)
        Null where the frame lacks an input; with `along`, without the first of its level.
    """
    levels = {name: getattr(claim, name) for name in kant.POINT}
    points = pd.MultiIndex.from_tuples(list(itertools.product(*levels.values())), names=kant.POINT)
    wide = kant.wide(study[study["metric"].isin(claim.metrics)]).reindex(points)
    parts = {formula.formula: formula.evaluate(wide) for formula in claim.formulas}
    values = pd.concat(parts, names=["figure", *kant.POINT])
    values = values.where(np.isfinite(values))
    if claim.along is None:
        return values
    others = [name for name in values.index.names if name != claim.along]
    ordered = values.sort_index(level=claim.along, kind="stable", sort_remaining=False)
    steps = ordered / ordered.groupby(level=others).shift(1)
    later = steps.index.get_level_values(claim.along) != min(levels[claim.along])
    return pd.Series(steps[later])


def _judged(claim: Claim, theirs: pd.DataFrame, ours: pd.DataFrame) -> Judgement:
    if claim.undecided is not None:
        return _judgement(claim, claim.stated, None, "undecided", claim.undecided, "undecided", [])
    published, found = evaluate(claim, theirs), evaluate(claim, ours)
    figures = _figures(claim, published, found)
    verdict, reason = _decided(claim, found, ours)
    text = f"{claim.stated}; its tables: {_text(published)}" if published.any() else claim.stated
    own = _verdict(claim, published)
    return _judgement(claim, text, _text(found), verdict, reason, own, figures)


def _judgement(claim: Claim, *rest: Any) -> Judgement:
    return Judgement(claim.id, claim.statement, claim.where, *rest)


def _verdict(claim: Claim, values: "pd.Series[float]") -> Verdict:
    known = values.dropna()
    if known.empty:
        return "undecided"
    return "holds" if claim.holds(known).mean() >= claim.share - _EXACT else "does not hold"


def _decided(claim: Claim, values: "pd.Series[float]", study: pd.DataFrame) -> tuple[Verdict, str]:
    """Judge our figures; the reason says at how many points, and which are outside."""
    own = study[study["metric"].isin(claim.metrics)]
    known, lacking = values.dropna(), int(values.isna().sum())
    why_lacking = next(iter(own.loc[own["value"].isna(), "reason"].dropna()), _NOT_THERE)
    if known.empty:
        return "undecided", why_lacking
    for caveat, native in ((claim.undecided_simulated, False), (claim.undecided_native, True)):
        machines = own.loc[own["value"].notna(), "machine"].dropna()
        if caveat is not None and ((machines == NATIVE) == native).any():
            return "undecided", caveat
    within = claim.holds(known)
    reason = f"{within.sum()} of {len(known)} figures within {_bounds(claim)}"
    outside = known[~within]
    if len(outside):
        worst = [f"{_where(claim, key)}: {value:.3g}" for key, value in outside.items()]
        more = len(worst) - _SHOWN_OUTSIDE
        reason += "; outside: " + ", ".join(worst[:_SHOWN_OUTSIDE])
        reason += f" and {more} more" if more > 0 else ""
    if lacking:
        reason += f"; {lacking} not measured ({why_lacking})"
    return _verdict(claim, values), reason


def _bounds(claim: Claim) -> str:
    low, high = claim.at_least * (1 - claim.tolerance), claim.at_most * (1 + claim.tolerance)
    if not math.isfinite(low):
        text = f"{high:.3g} at most"
    elif not math.isfinite(high):
        text = f"{low:.3g} at least"
    else:
        text = f"{low:.3g} to {high:.3g}"
    return text if claim.share == 1 else f"{text} ({claim.share:.0%} must be)"


def _where(claim: Claim, key: Any) -> str:
    figure, size, cpus, l2_kib = key
    text = f"{human_size(size)} {cpus} CPU"
    text += f" {human_size(l2_kib * 1024)} L2" if len(claim.l2_kib) > 1 else ""
    return text + (f" {figure}" if len(claim.figure) > 1 else "")


def _text(values: "pd.Series[float]") -> str | None:
    known = values.dropna()
    if known.empty:
        return None
    low, high = f"{known.min():.3g}", f"{known.max():.3g}"
    return low if low == high else f"{low} to {high}"


def _figures(
    claim: Claim, published: "pd.Series[float]", found: "pd.Series[float]"
) -> list[dict[str, Any]]:
    table = pd.DataFrame({"published": published, "ours": found}).reset_index()
    holds = claim.holds(table["ours"]).astype(object).where(table["ours"].notna(), None)
    plain = table.astype(object).where(table.notna(), None)
    return [
        {str(k): v for k, v in row.items()} for row in plain.assign(holds=holds).to_dict("records")
    ]
