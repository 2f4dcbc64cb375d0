"""Every plan survives each of its forms: TOML, JSON, and its steps as text."""

import json
import string

from hypothesis import given
from hypothesis import strategies as st

from rocketbed.chaos.evidence.record import Expectation
from rocketbed.chaos.plan.dump import plan_to_toml
from rocketbed.chaos.plan.form import plan_from_row, plan_to_row
from rocketbed.chaos.plan.plan import Background, Consumers, Plan, Producers, Shape
from rocketbed.chaos.plan.step import After, At, Every, Step, Trigger, When, parse_step
from rocketbed.chaos.plan.toml import read_toml
from rocketbed.chaos.plan.units import parse_duration, parse_size
from rocketbed.chaos.plan.verbs import VERBS

SECONDS = st.integers(0, 60_000_000).map(lambda micros: micros / 1e6)
ANY_SECONDS = st.integers(-7_200_000_000, 7_200_000_000).map(lambda micros: micros / 1e6)
SHARES = st.integers(0, 100).map(lambda percent: percent / 100)
TARGETS = st.sampled_from(
    ["leader", "follower:any", "b1", "b1,ns2", "rand:2", "ns:all", "clients:all", "node:b2"]
)

VALUES: dict[str, list[object]] = {
    "store-event": ["7", "rand:1..9"],
    "count": [1, 99],
    "set": ["maxMessageSize=2048", "maxMessageSize="],
}


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    settings = st.dictionaries(
        st.sampled_from(["flushIntervalCommitLog", "maxMessageSize", "rbMetadataSync"]),
        st.integers(1000, 99_999).map(str),
    )
    failover = draw(st.booleans())
    return Shape(
        brokers=draw(st.integers(3 if failover else 2, 9)),
        groups=draw(st.integers(1, 3)),
        nameservers=draw(st.integers(2, 9)),
        flush=draw(st.sampled_from(["sync", "async"])),
        repl="sync" if failover else draw(st.sampled_from(["sync", "async"])),
        min_isr=2 if failover else draw(st.integers(1, 9)),
        failover=failover,
        segment=draw(st.integers(1 << 12, 1 << 30)),
        settings=draw(settings),
    )


@st.composite
def steps(draw: st.DrawFn) -> Step:
    name = draw(st.sampled_from(sorted(VERBS)))
    verb = VERBS[name]
    words: dict[str, object] = {}
    required = draw(st.sampled_from(verb.one_of)) if verb.one_of else ""
    for word, parse in verb.takes.items():
        if word == "at" or (word in verb.one_of and word != required):
            continue
        if word != required and draw(st.booleans()):
            continue
        if parse is None:
            words[word] = True
        elif parse is parse_duration:
            words[word] = draw(ANY_SECONDS if word == "jump" else SECONDS)
        elif parse is parse_size:
            words[word] = draw(st.integers(0, 1 << 30))
        elif word in ("loss", "drift"):
            words[word] = draw(SHARES)
        elif word == "slow":
            words[word] = float(draw(st.integers(1, 100)))
        elif name == "damage":
            words[word] = draw(st.sampled_from(["queue", "mark"]))
        else:
            words[word] = draw(st.sampled_from(VALUES.get(word, ["m.*"])))
    return Step(
        trigger=draw(triggers()),
        verb=name,
        target="" if name == "heal" else draw(TARGETS),
        second=draw(TARGETS) if verb.has_second else "",
        words=words,
        share=draw(st.sampled_from([1.0, 0.5, 0.25])),
        for_s=draw(st.none() | SECONDS) if verb.lasts else None,
    )


@st.composite
def triggers(draw: st.DrawFn) -> Trigger:
    kind = draw(st.integers(0, 2))
    if kind == 0:
        return At(draw(SECONDS))
    if kind == 1:
        period = draw(st.integers(1, 60_000_000)) / 1e6
        return Every(period, draw(SECONDS), draw(st.none() | SECONDS))
    subject, value = draw(
        st.one_of(
            st.tuples(st.just("lag"), st.integers(0, 1 << 30)),
            st.tuples(st.just("t"), SECONDS),
            st.tuples(st.just("isr"), st.integers(0, 9).map(float)),
        )
    )
    return When(subject, draw(st.sampled_from(["<", "<=", "==", "!=", ">", ">="])), value)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    shape = draw(shapes())
    small = draw(st.integers(1, 900))
    drawn = draw(st.lists(steps(), max_size=5))
    if drawn:
        first = Step(trigger=At(1.0), verb="kill", target="leader", label="k")
        drawn = [
            first,
            *drawn,
            Step(trigger=After("k", draw(SECONDS)), verb="restart", target="@k"),
        ]
    millis = st.integers(1, 500_000).map(lambda micros: micros / 1000)
    return Plan(
        name=draw(st.text(string.printable, min_size=1, max_size=20)),
        seed=draw(st.integers(0, 1 << 40)),
        shape=shape,
        producers=Producers(
            count=draw(st.integers(1, 99)),
            rate=draw(st.integers(1, 10_000)) / 8,
            body=(small, small + draw(st.integers(0, 900))),
            batch=draw(SHARES),
            ordered=draw(st.booleans()),
            timeout_s=draw(st.integers(1, 10_000_000)) / 1e6,
        ),
        consumers=Consumers(
            count=draw(st.integers(0, 9)), mode=draw(st.sampled_from(["group", "pull"]))
        ),
        background=Background(
            disk_ms=draw(st.dictionaries(st.sampled_from(shape.nodes), millis)),
            cut_mode=draw(st.sampled_from(["random", "strict", "prefix", "reorder"])),
            link_ms=draw(millis),
            link_jitter_ms=draw(millis),
            slowness=draw(
                st.dictionaries(st.sampled_from(shape.nodes), SHARES.map(lambda x: x + 1))
            ),
            cold_share=draw(SHARES),
        ),
        steps=tuple(drawn),
        faults_s=draw(st.integers(60_000_000, 99_000_000)) / 1e6,
        recovery_s=draw(st.integers(1, 99_000_000)) / 1e6,
        expect=Expectation(
            loss=draw(st.sampled_from(["bound", "none"])),
            rto_s=draw(st.none() | SECONDS),
            progress=draw(st.none() | st.tuples(st.integers(0, 99), SECONDS)),
        ),
    )


@given(steps())
def test_a_step_is_its_text(step: Step) -> None:
    assert parse_step(str(step)) == step


@given(plans())
def test_a_plan_is_its_toml(plan: Plan) -> None:
    assert read_toml(plan_to_toml(plan), "x.toml").plan(plan.seed) == plan


@given(plans())
def test_a_plan_is_its_json(plan: Plan) -> None:
    assert plan_from_row(json.loads(json.dumps(plan_to_row(plan)))) == plan
