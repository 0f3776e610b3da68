"""`meta.callbacks`: what a spec may say, and what a search may change of it."""

from __future__ import annotations

import pytest

from slm_lab.spec import SpecError


@pytest.mark.parametrize(
    ("callbacks", "message"),
    [
        ("StopAtScore", "meta.callbacks: found 'StopAtScore'; expected a list"),
        ([3], r"meta.callbacks.0: found 3; expected a name, or a mapping with `name`"),
        (["StopAtScor"], r"meta.callbacks.0.name: .*Did you mean `StopAtScore`"),
        (["StopAtScore"], r"meta.callbacks.0.score: missing, and StopAtScore needs it"),
        ([{"name": "SaveEvery", "evry": 3}], r"0.evry: unknown key for SaveEvery. Did you mean"),
        ([{"name": "SaveEvery", "every": 0}], r"meta.callbacks.0.every: found 0"),
        ([{"name": "Curriculum", "stages": []}], r"0.stages: found \[\]; expected stages whose"),
        (["1x:Y"], r"meta.callbacks.0.name: found '1x:Y'; expected module:Class"),
        ([{"name": "WebhookAtEnd", "url": "file:///etc"}], r"0.url: .*expected an address"),
    ],
)
def test_a_callback_that_cannot_be_is_refused_with_its_key(callbacks, message, make_spec):
    with pytest.raises(SpecError, match=message):
        make_spec(meta__callbacks=callbacks)


def test_a_search_changes_keys_of_a_callback_but_never_what_runs(make_spec):
    callbacks = [{"name": "SaveEvery", "every": 100}]
    searched = make_spec(meta__callbacks=callbacks).with_values
    searched({"search": {"meta.callbacks.0.every__choice": [50, 100]}})
    for key in (
        "meta.callbacks__choice",
        "meta.callbacks.0__choice",
        "meta.callbacks.0.name__choice",
    ):
        with pytest.raises(SpecError, match="never what runs"):
            searched({"search": {key: [["a:B"], "a:B"]}})
