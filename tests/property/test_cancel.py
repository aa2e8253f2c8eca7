"""A cancel at any step (I7, I8): it settles, and the conversation can be talked to again."""

from hypothesis import given

from tests.property.drive import a_context, happen
from tests.property.profiles import profile
from tests.property.tape import Tape, tapes
from tests.property.world import World


@profile(300)
@given(tapes(60, 200))
def test_a_cancel_at_any_step_settles_and_the_conversation_goes_on(tape: Tape) -> None:
    world = World(a_context(tape, sub_agent=tape.one_in(4)))
    while not tape.over and not world.terminal:
        happen(world, tape)
        for discard in (False, True):
            if not world.terminal:
                world.cancel_and_go_on(discard=discard)
