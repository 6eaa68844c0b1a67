"""The table of microarchitectures x metrics x quality, as docs/metrics.md shows it."""

from tlscost import dictionary

__all__ = ["BEGIN", "END", "markdown"]

BEGIN = "<!-- made by: ./tlscost events --table -->"
END = "<!-- end of what is made -->"

_SIGNS = {"exact": "E", "approximate": "a", "undefined": "-"}


def markdown() -> str:
    """Return the table, a row per metric and a column per microarchitecture, and the reasons.

    `E` exact, `a` approximate, `-` undefined; empty: not asked for. Below it, why what is undefined
    is.
    """
    names = dictionary.microarchitectures()
    formulas = {name: {one.name: one for one in dictionary.load(name)} for name in names}
    metrics = dict.fromkeys(metric for name in names for metric in formulas[name])
    lines = [
        "| metric | " + " | ".join(f"`{name}`" for name in names) + " |",
        "|---|" + ":-:|" * len(names),
    ]
    for metric in metrics:
        found = [formulas[name].get(metric) for name in names]
        signs = (_SIGNS[one.quality] if one else "" for one in found)
        lines.append(f"| `{metric}` | " + " | ".join(signs) + " |")
    lines += ["", "Undefined, and why:", ""]
    reasons: dict[tuple[str, str], list[str]] = {}
    for metric in metrics:
        for name in names:
            one = formulas[name].get(metric)
            if one is not None and one.quality == "undefined":
                document = dictionary.microarchitecture(name).document
                why = one.why.removesuffix(f" ({document})")
                reasons.setdefault((metric, why), []).append(f"`{name}`")
    lines += [f"- `{metric}` ({', '.join(of)}): {why}" for (metric, why), of in reasons.items()]
    return "\n".join(lines) + "\n"
