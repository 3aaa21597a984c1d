"""One image of a report: in full with regions and reasons, as a card, or as a row of a table."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import PurePosixPath
from typing import Any

from patchsvdd.report.embedded_images import EmbeddedImages
from patchsvdd.report.html_page import text
from patchsvdd.report.score_histogram import short_ratio

Row = dict[str, Any]
STATUSES = {"anomalous": "Anomalous", "good": "Good", "unjudged": "Not calibrated", "unreadable": "Unreadable"}
MAX_REGIONS = 8
"""Largest number of regions listed per image: those with the highest scores."""
_SIGNS = {"anomalous": "▲", "good": "✓", "unjudged": "–", "unreadable": "✕"}


def status_of(row: Row) -> str:
    """One of ``STATUSES``."""
    if "error" in row or row.get("score") is None:
        return "unreadable"
    if row.get("threshold") is None:
        return "unjudged"
    return "anomalous" if row.get("is_anomalous", row.get("verdict") == "anomalous") else "good"


def name_of(image: str) -> str:
    """The name of an image as a heading, with its folder in a muted colour."""
    return f'<h3 class="name">{_path(image)}</h3>'


class ImageItems:
    """Rows of a run as HTML."""

    def __init__(self, pictures: EmbeddedImages, p_value: Callable[[float], float] | None) -> None:
        self._pictures, self._p_value = pictures, p_value

    def note(self) -> str:
        """Explanation of the numbers of the cases."""
        words = "Boxes are left, top – right, bottom, in pixels of the original image; scores are multiples of the "
        words += "threshold."
        if self._p_value is not None:
            words += " p: the probability that a good image has a value at least as high."
        return words

    def case(self, row: Row) -> str:
        """An image with overlay, regions and reasons."""
        status = status_of(row)
        return (
            f'<li class="item case {status}">{self._picture(row, status)}<div class="about">{_about(row, status)}'
            f"{self._regions(row)}</div>{self._reasons(row)}</li>\n"
        )

    def card(self, row: Row) -> str:
        """An image with its overlay."""
        status = status_of(row)
        return (
            f'<li class="item card {status}">{self._picture(row, status)}'
            f'<div class="about">{_about(row, status)}</div></li>\n'
        )

    def line(self, row: Row) -> str:
        """An image as a row of a table."""
        status, multiple, p_value = status_of(row), _multiple(row), row.get("p_value")
        ratio = "–" if multiple is None or math.isinf(multiple) else short_ratio(multiple)
        return (
            f'<tr class="item {status}"><td class="name">{_path(row["image"])}</td>'
            f'<td class="verdict">{_sign(status)}{STATUSES[status]}</td><td>{float(row["score"]):.3g}</td>'
            f"<td>{ratio}</td><td>{_probability(p_value)}</td><td>{len(row.get('regions', ()))}</td></tr>\n"
        )

    def _picture(self, row: Row, status: str) -> str:
        picture = self._pictures(row.get("overlay"))
        if picture is None:
            return '<div class="picture none">The overlay is in the results folder.</div>'
        words = text(f"{row['image']}: {STATUSES[status].lower()}; outlined regions and heat map")
        return f'<div class="picture">{picture.to_html(words)}</div>'

    def _regions(self, row: Row) -> str:
        """The table of an image's regions."""
        regions, threshold = row.get("regions", ()), row.get("threshold")
        if not regions:
            return ""
        size = row.get("image_size")
        lines = "".join(
            f"<tr><td>{number}{_like(region)}</td><td>{_box(region.get('box'))}</td><td>{_area(region, size)}</td>"
            f"<td>{_score(region, threshold)}</td><td>{self._p_of(_score_of(region))}</td></tr>"
            for number, region in enumerate(regions[:MAX_REGIONS], start=1)
        )
        more = len(regions) - MAX_REGIONS
        rest = f'<p class="detail">and {more} more with lower scores</p>' if more > 0 else ""
        return (
            '<table class="regions"><thead><tr><th scope="col">Region</th><th scope="col">Box</th>'
            f'<th scope="col">Area</th><th scope="col">Score</th><th scope="col">p</th></tr></thead>'
            f"<tbody>{lines}</tbody></table>{rest}"
        )

    def _p_of(self, score: float | None) -> str:
        return _probability(self._p_value(score) if self._p_value is not None and score is not None else None)

    def _reasons(self, row: Row) -> str:
        """The expandable reasons: a sentence, pairs of patches, and the contribution of each scale."""
        explanation = row.get("explanation")
        if not explanation:
            return ""
        reasons = explanation["reasons"]
        picture = self._pictures(explanation.get("picture"))
        words = f"{row['image']}: for each region, its patches next to the nearest normal patches"
        shown = f'<div class="pairs">{picture.to_html(text(words))}</div>' if picture is not None else ""
        numbered = enumerate(reasons[:MAX_REGIONS], 1)
        details = "".join(_reason(reason, number if len(reasons) > 1 else None) for number, reason in numbered)
        lead = f'<span class="lead">{text(_lead(reasons[0]))}</span>' if reasons else ""
        inner = f'<div class="reasons">{shown}<div>{details}</div></div>'
        return f'<details class="why"><summary>Why {lead}</summary>{inner}</details>'


def _lead(reason: Mapping[str, Any]) -> str:
    """The reasons of a region in one line."""
    return " · ".join(
        f"{scale['patch_size']} px: {_typical(scale['times_usual'])} the typical distance, nearest in "
        f"{PurePosixPath(scale['nearest']['image']).name}"
        for scale in reason["scales"]
    )


def _reason(reason: Mapping[str, Any], number: int | None) -> str:
    """The reasons of a region: a sentence and a table of scales."""
    lines = "".join(
        f"<tr><td>{scale['patch_size']}&nbsp;px</td><td>{_corner(scale['box'])}</td>"
        f"<td>{text(scale['nearest']['image'])}</td><td>{_corner(scale['nearest']['box'])}</td>"
        f"<td>{_typical(scale['times_usual'])}</td><td>{scale['share']:.0%}</td></tr>"
        for scale in reason["scales"]
    )
    label = f"<strong>Region {number}.</strong> " if number is not None else ""
    return (
        f'<p class="words">{label}{text(reason["in_words"])}</p><table class="regions"><thead><tr>'
        '<th scope="col">Scale</th><th scope="col">Patch at</th><th scope="col">Nearest in</th>'
        '<th scope="col">Nearest at</th><th scope="col">× typical</th><th scope="col">Share</th>'
        f"</tr></thead><tbody>{lines}</tbody></table>"
    )


def _about(row: Row, status: str) -> str:
    """The name, verdict and numbers of an image."""
    multiple, regions, p_value = _multiple(row), len(row.get("regions", ())), row.get("p_value")
    detail = [f"score {float(row['score']):.3g}", "1 region" if regions == 1 else f"{regions} regions"]
    if p_value is not None:
        detail.append(f"p {_probability(p_value)}")
    ratio = gauge = ""
    if multiple is not None:
        if math.isfinite(multiple):
            ratio = f'<span class="ratio">{short_ratio(multiple)}× threshold</span>'
        gauge = f'<span class="gauge" style="--fill:{min(100.0, 100 / 3 * multiple):.1f}%" aria-hidden="true"></span>'
    badge = f'<span class="badge">{_sign(status)}{STATUSES[status]}</span>'
    return (
        f'{name_of(row["image"])}<p class="verdict">{badge}{ratio}</p><p class="detail">{" · ".join(detail)}</p>{gauge}'
    )


def _multiple(row: Row) -> float | None:
    """Score ÷ threshold; None without a threshold."""
    threshold = row.get("threshold")
    if threshold is None:
        return None
    return float(row["score"]) / threshold if threshold > 0 else math.inf


def _path(image: str) -> str:
    path = PurePosixPath(image)
    parent = "" if str(path.parent) == "." else f"<span>{text(path.parent)}/</span><wbr>"
    return f"{parent}{text(path.name)}"


def _sign(status: str) -> str:
    return f'<span aria-hidden="true">{_SIGNS[status]}</span>'


def _box(box: list[int] | None) -> str:
    return "–" if box is None else f"{box[0]}, {box[1]} – {box[2]}, {box[3]}"


def _corner(box: list[int]) -> str:
    return f"{box[0]},&nbsp;{box[1]}"


def _area(region: Mapping[str, Any], size: list[int] | None) -> str:
    area = int(region["area"])
    share = f" ({area / (size[0] * size[1]):.1%})" if size else ""
    return f"{area:,} px{share}"


def _like(region: Mapping[str, Any]) -> str:
    """What a region resembles, in words; empty if the model was taught no such defect."""
    like = region.get("like")
    return f" {text(like)}" if like else ""


def _score_of(region: Mapping[str, Any]) -> float | None:
    """The score of a region; rows of earlier versions have only the peak, which was the score."""
    score: float | None = region.get("score", region.get("peak"))
    return score


def _score(region: Mapping[str, Any], threshold: float | None) -> str:
    """The score of a region, and its peak if different."""
    score, peak = _score_of(region), region.get("peak")
    if score is None:
        return "–"
    higher = f" (peak {_multiple_of(peak, threshold)})" if peak is not None and peak != score else ""
    return _multiple_of(score, threshold) + higher


def _multiple_of(value: float, threshold: float | None) -> str:
    return f"{short_ratio(value / threshold)}×" if threshold else f"{value:.3g}"


def _typical(times: float | None) -> str:
    return "∞" if times is None else f"{short_ratio(times)}×"


def _probability(p_value: float | None) -> str:
    return "–" if p_value is None else f"{p_value:.2g}"
