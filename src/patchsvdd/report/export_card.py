"""The card of an exported file. PyTorch is not needed."""

from __future__ import annotations

from patchsvdd.core.config import Config
from patchsvdd.report.model_card import ModelCard, card_with, data_facts, training_facts
from patchsvdd.runtime.contract import About


def export_card(about: About, name: str) -> ModelCard:
    """The card of an exported file called ``name``."""
    provenance, config = about.provenance, Config.from_json(dict(about.config))
    facts = {"Exported file": name, "Identity of the model": about.identity or "not saved"}
    facts |= training_facts(provenance, config, int(provenance["data"]["images"]), "Encoder")
    facts |= {"Memory": about.memory, "Search": about.search}
    return card_with({**facts, **data_facts(provenance)}, about.calibration)
