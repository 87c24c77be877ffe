"""Layers one after the other on several texts, and what layers share with others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lbrx.models.inference import open_model
from lbrx.models.inference.layerwise import LayerwiseRun, shares_between_layers
from support.family_goldens import golden


@pytest.mark.parametrize(
    ("name", "shares"), [("gemma3_text", False), ("gemma4", False), ("gemma4-inputs", True), ("falcon_h1", False)]
)
def test_layers_are_resumed_unless_they_share_more_than_their_outputs(name: str, shares: bool, tmp_path: Path) -> None:
    case = golden(name)
    model = open_model(case.write(tmp_path / "model"))
    assert shares_between_layers(model) is shares
    texts = [case.ids, case.ids[:5]]
    whole, states = LayerwiseRun(model, texts), {}
    whole.start()
    whole.run_layers(lambda number, hidden: states.update({number: list(hidden)}))
    for number, ids in enumerate(texts):
        rows = np.concatenate([block for _, block in whole.logit_blocks(number)])
        np.testing.assert_array_equal(rows, model.logits(ids))
    if not shares:
        resumed = LayerwiseRun(model, texts)
        resumed.resume(len(states) - 1, states[len(states) - 2])
        resumed.run_layers()
        np.testing.assert_array_equal(resumed.hidden[0], whole.hidden[0])
