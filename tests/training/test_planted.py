"""Where the rejected states alone hold the future, Carryover learns to read it and its baseline cannot."""

from __future__ import annotations

import torch

from reanchor import DecodeConfig
from reanchor.drafters.load import load_drafter
from reanchor.training.drafter_shape import DrafterShape
from reanchor.training.evaluation import decoded
from reanchor.training.jobs import TrainingJob, train
from reanchor.training.responses import Response
from reanchor.training.train_config import TrainConfig
from tests.tiny import greedy
from tests.training import planted

SETTINGS = {
    "batch": 8,
    "anchors": 24,
    "lr": 5e-3,
    "precision": "no",
    "held_out": 4,
    "probe": 2,
    "decode_prompts": 0,
    "evaluate_every": 1000.0,
    "save_every": 1000.0,
}


def test_the_target_is_what_it_is_said_to_be():
    model = planted.planted_target()
    for prompt, response in planted.texts(3, 20):
        assert greedy(model, torch.tensor(prompt), 20) == response


def test_carryover_beats_its_baseline(tmp_path):
    model = planted.planted_target()
    responses = planted.write_texts(tmp_path / "responses.jsonl", 260)
    start = planted.write_drafter(tmp_path / "untrained")

    def trained(name, carryover, source, epochs):
        config = TrainConfig(epochs=epochs, **SETTINGS)
        job = TrainingJob(responses, tmp_path / name, str(source), carryover, DrafterShape(), config)
        return train(job, model, lambda _message: None)

    first = trained("first", False, start, 2)
    taus = {}
    for name, carryover in (("baseline", False), ("carryover", True)):
        drafter = load_drafter(trained(name, carryover, first, 6), model)
        held = [Response(tuple(p), tuple(r)) for p, r in planted.texts(6, 30, seed=7)]
        for on in (True, False) if carryover else (False,):
            config = DecodeConfig("dflash", carryover=on)
            taus[name, on] = decoded(drafter, model, held, 30, config)["tau"]
    assert taus["baseline", False] < 1.5, "nothing but carried rows tells the future"
    assert taus["carryover", True] > taus["baseline", False] + 1
    assert taus["carryover", True] > taus["carryover", False] + 1
