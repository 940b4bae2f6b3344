"""Instances without profiles learn the times of steps while they serve, in the twin: cores, engines, successors."""

from dunlin.cost.models import BatchCounts
from dunlin.messages.types import RequestClass, StepTimesSource
from simulator.cluster.scripted import ScriptedCluster
from tests.backlog import Backlog

NAME = "instance-0"


def test_they_predict_once_they_have_seen_enough_and_their_successors_from_the_first_step_on() -> None:
    engine = {"slots": 4000, "max_positions": 1024, "step_s": 0.01, "token_s": 1e-4}
    objectives = {"objectives.tpot_s": 0.03, "scheduler.budget_tokens": 256}
    cluster = ScriptedCluster(preset="unified", instances=1, engine=engine, has_profiles=False, instance=objectives)
    cluster.run_until_ready()
    Backlog(cluster, "chat", 2, 60, 20, request_class=RequestClass.INTERACTIVE)
    Backlog(cluster, "batch", 40, 500, 30)
    report = cluster.instances[NAME].report()
    assert (report.step_times, report.learnt_steps_total) == (StepTimesSource.LEARNING, 0)
    cluster.world.run(for_s=20.0)
    core = cluster.instances[NAME]
    report = core.report()
    assert report.step_times is StepTimesSource.LEARNT
    assert max(report.prompt_step_error, report.decode_step_error) < 0.05
    assert abs(core.steps.forecast.step_s(BatchCounts(1, 200, 0, 40_000)) / 0.03 - 1.0) < 0.05
    assert NAME in cluster.profiles.learnt
    cluster.kill_instance(NAME)
    cluster.start("instance", NAME)
    report = cluster.instances[NAME].report()
    assert (report.step_times, report.steps_total) == (StepTimesSource.LEARNT, 0)
    assert report.learnt_steps_total > 0
