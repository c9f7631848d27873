"""Random traffic on marks: whoever comes, leaves, parks or shares, nobody's answer changes."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from marks import BLOCK, EOS, VOCABULARY, house, truth

from deepinfer.engine.admission import TooLong
from deepinfer.engine.loop import Loop, Rules
from deepinfer.engine.request import Request
from deepinfer.sample.params import SamplingParams

LIMIT = 96
TOKENS = st.integers(2, VOCABULARY - 1)
MOST_STEPS = 5000
"""Far more than any example needs: whoever waits longer waits for ever."""


class Traffic(RuleBasedStateMachine):
    """Requests arrive, steps run, requests are aborted, time passes."""

    @initialize(
        slots=st.integers(1, 6),
        blocks=st.integers(8, 60),
        snapshots=st.tuples(st.integers(0, 3), st.integers(0, 3)),
        rows=st.sampled_from([2, 3, 5, 8, 16, 64]),
        prefix=st.sampled_from(["exact", "exact", "exact", "off"]),
        replay=st.sampled_from(["exact", "exact", "off"]),
        ahead=st.booleans(),
    )
    def begin(self, slots, blocks, snapshots, rows, prefix, replay, ahead):
        self.now = 0.0
        self.loop = Loop(
            house(slots, blocks, *snapshots),
            Rules(rows, LIMIT, None, None, prefix, replay, ahead),
            clock=lambda: self.now,
        )
        self.requests: list[Request] = []

    @rule(
        own=st.lists(TOKENS, min_size=1, max_size=30),
        old=st.integers(0, 30),
        part=st.sampled_from([0.0, 0.3, 0.7, 1.0, 1.0]),
        tokens=st.integers(1, 20),
        n=st.sampled_from([1, 1, 1, 2, 3]),
        priority=st.sampled_from([0, 0, 0, 1, 2]),
        continues=st.booleans(),
        patience=st.sampled_from([None, None, None, 5.0]),
    )
    def arrive(self, own, old, part, tokens, n, priority, continues, patience):
        """A prompt of its own behind a part of what an earlier request knows."""
        prompt = list(own)
        if self.requests:
            earlier = self.requests[old % len(self.requests)].tokens
            prompt = earlier[: int(len(earlier) * part)] + prompt
        prompt = prompt[: LIMIT - 1]
        params = SamplingParams(max_tokens=min(tokens, LIMIT - len(prompt)), n=n, seed=old)
        deadline = None if patience is None else self.now + patience
        leader = None
        for sample in range(n):
            request = Request(
                len(self.requests), prompt, params, (EOS,), None, LIMIT, (), priority, deadline,
                b"", sample, leader, continues,
            )  # fmt: skip
            leader = leader or request
            try:
                self.loop.add(request)
            except TooLong:
                assert -(-request.most // BLOCK) > self.loop.cache.blocks.count
                return
            self.requests.append(request)

    @rule(count=st.integers(1, 12))
    def run(self, count):
        for _ in range(count):
            self.loop.step()

    @rule(which=st.integers(0, 30))
    def abort(self, which):
        if self.requests:
            request = self.requests[which % len(self.requests)]
            self.loop.abort(request)
            assert request.is_finished

    @rule(seconds=st.sampled_from([1.0, 10.0, 40.0]))
    def wait(self, seconds):
        self.now += seconds

    @invariant()
    def every_block_has_the_owners_that_it_counts(self):
        if not hasattr(self, "loop"):
            return
        cache, scheduler = self.loop.cache, self.loop.scheduler
        counted: Counter[int] = Counter()
        for held in scheduler.here.of.values():
            counted.update(held.sequence.blocks)
            done = int(scheduler.here.done[held.slot])
            assert len(held.sequence.blocks) * BLOCK >= done
            assert scheduler.here.flying[held.slot] in range(int(self.loop.rules.ahead) + 1)
        for snapshot in (*cache.snapshots._used[True], *cache.snapshots._used[False]):
            counted.update([snapshot.tail_block] if snapshot.tail_block else [])
        assert counted == Counter(
            {block: count for block, count in enumerate(cache.blocks._references) if count}
        )
        assert cache.blocks.free + cache.blocks.held + cache.prefix.idle == cache.blocks.count
        slots = [held.sequence.slot for held in scheduler.here.of.values()]
        assert len(slots) == len(set(slots)) == cache.geometry.slots - cache.slots.free
        reserved = sum(held.reserved for held in scheduler.here.of.values())
        assert reserved == scheduler.admission.reserved

    def teardown(self):
        if not hasattr(self, "loop"):
            return
        for _ in range(MOST_STEPS):
            if not self.loop.is_busy:
                break
            self.loop.step()
            self.now += 0.01
        assert not self.loop.is_busy, "somebody waits for ever"
        self.every_block_has_the_owners_that_it_counts()
        assert self.loop.cache.slots.free == self.loop.cache.geometry.slots
        self.loop.cache.clear()
        assert self.loop.cache.blocks.free == self.loop.cache.blocks.count
        self.loop.close()
        for request in self.requests:
            self._check(request)

    @staticmethod
    def _check(request: Request) -> None:
        """Token by token what the request alone would have got, and the right end."""
        output: list[Any] = request.output
        if output:
            expected = truth(request.tokens[:-1], request.params.stream_seed(request.sample))
            assert output == expected[request.prompt_tokens - 1 :]
        assert EOS not in output[:-1]
        if request.finish_reason == "stop":
            assert output[-1] == EOS
        elif request.finish_reason == "length":
            assert len(request.tokens) == request.most
        else:
            assert request.finish_reason in ("abort", "deadline")


TestTraffic = Traffic.TestCase
TestTraffic.settings = settings(max_examples=200, stateful_step_count=14, deadline=None)
