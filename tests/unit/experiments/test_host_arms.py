"""One host against all: what each arm asks for, and what is refused."""

import pytest
from msgspec.structs import replace

from dflash_tui.cli.commands.experiments import read_experiment_request
from dflash_tui.cli.parser import build_parser
from dflash_tui.common.errors import UsageError
from dflash_tui.experiments.builder import build_experiment
from dflash_tui.experiments.design import Design
from dflash_tui.planning.cluster import Cluster, ClusterHost

PAIR = Cluster((ClusterHost("", "10.0.0.1", "eth0"), ClusterHost("b", "10.0.0.2", "eth0")))


def design(*words: str) -> Design:
    args = build_parser().parse_args(["ab", "demo-cpu", *words])
    request = read_experiment_request(args)
    return build_experiment(replace(request, launch=replace(request.launch, cluster=PAIR)))[0]


@pytest.mark.parametrize(
    ("words", "widths"),
    [
        ((), {"1": "1", "2": "2"}),
        (("--set", "tensor-parallel-size=2"), {"1": "1", "2": "2"}),
        (("--set", "tensor-parallel-size=4"), {"1": "2", "2": "4"}),
        (("--set", "tensor-parallel-size=3"), {"1": "3", "2": "6"}),
    ],
)
def test_each_host_has_the_same_share(words, widths):
    arms = {arm.name: arm for arm in design("--peer", "b", "--vary", "hosts=1,2", *words).arms}
    assert {name: arm.plan.find_flag("tensor-parallel-size") or "1" for name, arm in arms.items()} == widths
    one, two = arms["1"], arms["2"]
    assert (one.request.peers, one.plan.cluster, one.plan.find_flag("nnodes")) == ((), None, None)
    assert (two.request.peers, two.plan.cluster, two.plan.find_flag("nnodes")) == (("b",), PAIR, "2")
    assert two.plan.env["VLLM_HOST_IP"] == "10.0.0.1"


def test_host_arms_keep_their_named_order():
    assert [arm.name for arm in design("--peer", "b", "--vary", "hosts=2,1").arms] == ["2", "1"]


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("--vary", "hosts=1,2"), "--peer HOST"),
        (("--peer", "b", "--vary", "hosts=1,3"), "hosts=1,2"),
        (("--peer", "b", "--vary", "hosts=2,2"), "hosts=1,2"),
    ],
)
def test_other_numbers_of_hosts(words, hint):
    with pytest.raises(UsageError) as error:
        design(*words)
    assert hint in error.value.hint


def test_host_arms_share_link_with_own_caches():
    varied = design("--peer", "b", "--set", "tensor-parallel-size=2", "--vary", "n=3,4")
    assert [arm.plan.cluster for arm in varied.arms] == [PAIR, PAIR]
    assert varied.own_cache
    assert "--peer b" in varied.command
