"""What local steps take, send and cost, as the planner, the log and `Compression.auto` say it."""

from __future__ import annotations

import pytest

from lightcc._low_communication import LOSSES, local_step_hint, loss_of, losses_text
from lightcc.plan.__main__ import main
from lightcc.plan.costs import Costs
from lightcc.plan.site import Site
from lightcc.plan.ways import local_ways
from lightcc.plan.workload import from_parameters

SHARES = [1.0, 0.25, 0.125]


def test_losses_are_those_of_trainings_that_are_not_longer() -> None:
    shortest, longest = LOSSES[False, True]
    assert loss_of(longest.outer_steps - 1, topk=False, dense_first=True) == shortest
    assert loss_of(10**6, topk=False, dense_first=True) == longest
    assert loss_of(1, topk=False, dense_first=True) == shortest


def test_the_log_says_what_a_length_costs_and_what_a_dense_phase_does() -> None:
    from_start, after_fifth = LOSSES[True, False][0], LOSSES[True, True][0]
    text = losses_text(15, 0, True, 1500)
    assert (
        f"100 outer steps. In a measured training of 100 the loss was {from_start.percent:g}%"
        in text
    )
    assert text.endswith(f"with dense_steps=300 it was {after_fifth.percent:g}%")
    assert losses_text(15, 300, True, 1500).startswith("80 outer steps")
    assert "dense_steps=" not in losses_text(15, 300, True, 1500)
    assert "total_steps says how close" in losses_text(15, 0, False, None)


def test_local_steps_are_hinted_at_where_they_would_halve_a_step() -> None:
    # 0.1 s alone, and 8 s for all bytes: 1.1 s in int4, 0.17 s in local steps.
    assert "about 169 ms" in local_step_hint(SHARES, [8.1, 2.1, 1.1])
    assert not local_step_hint(SHARES, [1.2, 1.05, 1.025])  # The network takes little.
    assert not local_step_hint(SHARES, [1.0, 1.1, 1.2])  # It takes nothing.
    assert not local_step_hint([0.125], [1.0])  # Nobody knows.


def test_local_ways_send_what_is_computed_by_hand() -> None:
    count = 32_000_000
    workload = from_parameters(count).lasting(0.5)
    ways = local_ways(workload, Site(2, 2, 1e8, 1e8), Costs(), 1500)
    int4 = (0.5 + 2 / 128) * count
    assert [way.sent_bytes for way in ways] == pytest.approx(
        [int4, 0.2 * int4 + 0.8 * int4 / 15, 0.05 * 1.75 * count / 15], rel=1e-3
    )
    wire_s = 8 * Costs().wire_bytes_per_byte * int4 / 1e8
    assert ways[1].local_s == pytest.approx(0.5 + wire_s / 15, rel=0.05)
    assert ways[1].training_s == pytest.approx(
        1500 * (0.2 * ways[0].dense_s + 0.8 * ways[1].local_s)
    )


def test_the_command_compares_them(capsys: pytest.CaptureFixture[str]) -> None:
    site = ["--parameters", "1e8", "--compute", "1", "--gpus", "2", "--link", "100m"]
    assert main([*site, "--hosts", "2", "--steps", "6000"]) == 0
    shown = capsys.readouterr().out
    assert all(len(line) <= 100 for line in shown.splitlines())
    assert "the fastest is sparse local steps:" in shown
    with pytest.raises(SystemExit):
        main([*site, "--hosts", "1", "--steps", "6000"])
    assert "--steps needs at least two hosts" in capsys.readouterr().err
