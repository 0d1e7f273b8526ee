"""The memory of a step on a card and on its host, by option."""

import pytest
from drawings import words

from pomology.models.cost import Cost
from pomology.views import offload_memory

STEP = "a step of whisper-medium at batch size 4"


def counted(*gigabytes):
    """Return options with counted work; gigabytes: on the card and on the host, of each."""
    return {
        option: Cost(1, 1, state_bytes=card * 10**8, saved_bytes=0, host_bytes=host * 10**8)
        for option, (card, host) in zip(offload_memory.OPTIONS, gigabytes, strict=True)
    }


@pytest.mark.parametrize(
    ("gigabytes", "holding"),
    [
        (
            [(239, 0), (120, 122), (133, 0), (14, 122)],
            "a card of 8 GB or 11 GB holds it only with offload and recompute",
        ),
        (
            [(100, 0), (90, 10), (99, 0), (81, 10)],
            "a card of 8 GB holds it with none of these; a card of 11 GB holds it with each of "
            "these",
        ),
        (
            [(120, 0), (70, 50), (125, 0), (20, 50)],
            "a card of 8 GB or 11 GB holds it only with offload and with offload and recompute",
        ),
    ],
)
def test_the_options_with_which_a_card_holds_a_step_are_named(gigabytes, holding):
    said = offload_memory.fitting(STEP, counted(*gigabytes))
    assert said.startswith(f"By count {STEP} takes on the card ")
    assert said.endswith(f" with offload and recompute: {holding}.")


def test_the_figure_has_a_bar_for_each_option_and_lines_at_the_cards():
    needed = counted((239, 0), (120, 122), (133, 0), (14, 122))
    (axis,) = offload_memory.figure(STEP, needed).axes
    assert axis.get_title(loc="left") == "A step of whisper-medium at batch size 4"
    widths = [patch.get_width() for patch in axis.patches]
    assert widths == pytest.approx([23.9, 12.0, 12.2, 13.3, 1.4, 12.2])
    assert {"23.9 GB", "1.4 + 12.2 GB"} <= {*words(axis)}
    assert [line.get_xdata()[0] for line in axis.lines[-2:]] == [8, 11]
