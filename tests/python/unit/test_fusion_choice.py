"""Which fusion strategy counts: variable, argument, default; and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

import lightcc as hvd
from lightcc.fusion import STRATEGIES, FusionChoice, Rule, choose_fusion


def chosen(
    fusion_type: Any = None, threshold: Any = None, pieces: Any = None, scopes: Any = None
) -> FusionChoice:
    return choose_fusion(fusion_type, threshold, pieces, scopes)


@pytest.mark.usefixtures("world")
class TestArguments:
    def test_nothing_said_is_auto_fusion_by_the_worlds_rule(self) -> None:
        assert chosen() == FusionChoice("auto_fusion", "", 64 << 20, Rule.DEFAULT, 0)

    def test_what_is_said_is_asked_of_the_sequencer(self) -> None:
        assert chosen("auto_fusion")[3:5] == (Rule.AUTO, 64 << 20)
        assert chosen("auto_fusion", 5)[3:5] == (Rule.AUTO, 5)
        assert chosen(None, 0)[3:5] == (Rule.AUTO, 0)
        assert chosen("none")[3:5] == (Rule.NONE, 0)
        assert chosen("horovod")[3:5] == (Rule.HOROVOD, 0)

    def test_plans_leave_the_rest_to_the_worlds_rule(self) -> None:
        for strategy in ("piecewise_fusion", "scopewise_fusion"):
            choice = chosen(strategy, 7, scopes="a")
            assert choice.planned
            assert choice.threshold_bytes == 7
            assert choice.rule == Rule.DEFAULT

    def test_schedules_belong_to_their_strategies(self) -> None:
        assert chosen("piecewise_fusion", pieces="2;6").schedule == "2;6"
        assert chosen("piecewise_fusion").schedule == "0"
        assert chosen("scopewise_fusion", scopes="a;b").schedule == "a;b"
        assert chosen("scopewise_fusion", scopes="").schedule == ""
        assert chosen("none", pieces="nonsense is not looked at").schedule == ""

    @pytest.mark.parametrize("name", ["", "auto", "None", "ddp", 3])
    def test_other_strategies_are_refused_with_the_choices(self, name: Any) -> None:
        with pytest.raises(ValueError, match=rf"fusion_type is .*one of {', '.join(STRATEGIES)}"):
            chosen(name)

    @pytest.mark.parametrize("name", ["arrival", "model"])
    def test_strategies_of_earlier_versions_are_refused_with_what_to_use(self, name: str) -> None:
        with pytest.raises(ValueError, match=rf"fusion_type is '{name}', which is gone .*use auto"):
            chosen(name)

    @pytest.mark.parametrize("threshold", [-1, 1.5, True, "64M", 2**63])
    def test_a_threshold_is_a_number_of_bytes(self, threshold: Any) -> None:
        with pytest.raises(ValueError, match=r"auto_fusion_threshold is .*integer of at least 0"):
            chosen(None, threshold)

    def test_bad_schedules_are_named(self) -> None:
        with pytest.raises(ValueError, match="piecewise_fusion_schedule is '6;2'"):
            chosen("piecewise_fusion", pieces="6;2")
        with pytest.raises(ValueError, match="scopewise_fusion_schedule is 'a;a'"):
            chosen("scopewise_fusion", scopes="a;a")
        with pytest.raises(ValueError, match=r"needs scopes: set scopewise_fusion_schedule or"):
            chosen("scopewise_fusion")


def test_lightcc_must_be_initialized() -> None:
    with pytest.raises(ValueError, match="has not been initialized"):
        chosen()


class TestVariables:
    @pytest.mark.parametrize("strategy", STRATEGIES)
    def test_the_strategy_counts_before_the_argument(
        self, strategy: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("LIGHT_FUSION_STRATEGY", strategy)
        hvd.init()
        for argument in (None, "none", "auto_fusion", "piecewise_fusion"):
            assert chosen(argument, scopes="a").strategy == strategy

    def test_auto_fusion_of_the_environment_is_the_worlds_rule(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("LIGHT_FUSION_STRATEGY", "auto_fusion")
        monkeypatch.setenv("LIGHT_FUSION_THRESHOLD", "3K")
        hvd.init()
        assert chosen("none", 17) == FusionChoice("auto_fusion", "", 3072, Rule.DEFAULT, 0)

    def test_the_threshold_counts_before_the_argument(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("LIGHT_FUSION_THRESHOLD", "1M")
        hvd.init()
        assert chosen("piecewise_fusion", 17).threshold_bytes == 1 << 20
        assert chosen("auto_fusion", 17)[3:5] == (Rule.AUTO, 1 << 20)

    def test_the_schedule_counts_before_the_argument(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("LIGHT_FUSION_SCHEDULE", "3;4")
        hvd.init()
        assert chosen("piecewise_fusion", pieces="2;6").schedule == "3;4"
        assert chosen("scopewise_fusion", scopes="a").schedule == "3;4"
        assert chosen("none").schedule == ""

    def test_a_bad_schedule_names_the_variable(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("LIGHT_FUSION_STRATEGY", "piecewise_fusion")
        monkeypatch.setenv("LIGHT_FUSION_SCHEDULE", "two")
        hvd.init()
        with pytest.raises(ValueError, match="LIGHT_FUSION_SCHEDULE is 'two'"):
            chosen()
