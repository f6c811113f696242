"""The plan of the blocks of steps, and their clock."""

from hvdgan.diagnostics.speed.blocks import PARTS, Clock, parts, plan


def test_blocks_alternate_and_only_what_follows_the_lead_counts():
    blocks = plan(4, 2, 1, several=True)
    assert [(block.reduces, block.lead, block.measured) for block in blocks] == [
        *((kind, 2, 0) for kind in (True, False)),
        *((kind, 1, 2) for _ in range(2) for kind in (True, False)),
    ]
    clock = Clock(blocks)
    for step in range(clock.steps):
        clock.enter(step)
        clock.add(float(step), 0.5, 1.0)
    assert clock.times[True] == [[5.5, 0.5, 1.0], [11.5, 0.5, 1.0]]
    found = parts([[4.0, 1.0, 2.5]], [[3.0, 0.5, 2.0]])
    assert [found[name] for name in PARTS] == [2.0, 0.5, 1.0, 0.5]
