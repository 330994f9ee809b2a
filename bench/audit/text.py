"""What an audit says to its reader."""

from typing import Any

from tabulate import tabulate

_NOTES = (
    "same: what the target says, one token at a time. near-ties: another token, where the two logits are closer than rounding in this "
    "precision\nexplains (the limit). wrong: anything else. gap: to the target's choice, one token at a time / in passes of a verification."
)


def lossless(info: dict[str, Any]) -> bool:
    """Whether no audit of a run.json has found anything wrong."""
    return all(found["lossless"] for found in info.get("audit", {}).values())


def audit_lines(info: dict[str, Any]) -> list[str]:
    """A line of summary per audited pair, and where something is wrong, what."""
    lines = []
    for name, found in info.get("audit", {}).items():
        total = {key: sum(m[key] for m in found["methods"]) for key in ("outputs", "same", "near_ties", "wrong")}
        of = f" of {name}" if len(info["audit"]) > 1 else ""
        lines.append(
            f"Audit{of}: {total['outputs']} outputs of {found['samples']} samples read again by the target: {total['same']} the same, "
            f"{total['near_ties']} with near-ties, {total['wrong']} WRONG".replace("0 WRONG", "0 wrong")
        )
        lines += [f"Not lossless: {line}" for line in _faults(found)]
    return lines


def audit_text(audits: dict[str, dict[str, Any]]) -> str:
    """All that audits of a run's pairs found."""
    return "\n\n".join(_of_pair(name, found) for name, found in audits.items())


def _of_pair(name: str, found: dict[str, Any]) -> str:
    columns = {"method": "method", "outputs": "outputs", "same": "same", "near_ties": "near-ties", "wrong": "wrong"}
    rows = [{title: method[key] for key, title in columns.items()} for method in found["methods"]]
    close = [
        f"{method['method']}, {_where(place)}: {_gaps(place)}"
        for method in found["methods"]
        for place in method["places"]
        if not _is_wrong(place, found["limit"])
    ]
    faults = [f"Not lossless: {line}" for line in _faults(found)]
    verdict = [] if faults else ["Nothing wrong."]
    return "\n".join(
        [
            f"{name}: {found['samples']} samples; limit of near-ties {found['limit']:.3g} (twice the rounding seen, in logits)",
            "",
            tabulate(rows, headers="keys", tablefmt="github"),
            "",
            _NOTES,
            *(["Near-ties:", *close] if close else []),
            *faults,
            *verdict,
        ]
    )


def _faults(found: dict[str, Any]) -> list[str]:
    lines = [found["fault"]] if found["fault"] else []
    for method in found["methods"]:
        for place in method["places"]:
            if _is_wrong(place, found["limit"]):
                lines.append(f"{method['method']}, {_where(place)}: {place['fault'] or _gaps(place)}")
        if method["fault"]:
            lines.append(f"{method['method']}: {method['fault']}")
    return lines


def _is_wrong(place: dict[str, Any], limit: float) -> bool:
    return bool(place["fault"]) or place["gap"] > limit


def _where(place: dict[str, Any]) -> str:
    repeat = f", repeat {place['repeat']}" if place["repeat"] else ""
    return f"{place['task']} {place['sample_id']}{repeat}, token {place['position']}"


def _gaps(place: dict[str, Any]) -> str:
    which = f"{place['token']} instead of {place['target']}, " if place["token"] != place["target"] else ""
    return f"{which}gap {place['gap']:.3g} / {place['pass_gap']:.3g}"
