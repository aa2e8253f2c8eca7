"""How many examples: `ci` is the same in every run, `fault` is new each time and as long as BEDROCK_EXAMPLES says."""

import os
from collections.abc import Mapping

from hypothesis import HealthCheck, settings

WHOLE = 1_000
CI_EXAMPLES = 350
"""The fewest that reach all that must be reached, with room to spare."""
EXAMPLES = int(os.environ.get("BEDROCK_EXAMPLES", CI_EXAMPLES))
"""What a law of the machine gets; everything else in proportion."""

_CALM = settings(deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
settings.register_profile("ci", _CALM, derandomize=True)
settings.register_profile("fault", _CALM, print_blob=True)


def profile(examples: int = WHOLE, steps: int = 50) -> settings:
    """Settings for a test that gets so many examples of WHOLE ones; of a state machine, with so many steps each."""
    chosen = settings.get_profile("fault" if "BEDROCK_EXAMPLES" in os.environ else "ci")
    return settings(chosen, max_examples=max(1, examples * EXAMPLES // WHOLE), stateful_step_count=steps)


def everything_was_seen(expected: set[str], seen: Mapping[str, int]) -> bool:
    """Whether the examples reached all of that; a fault run with fewer examples need not."""
    return EXAMPLES < CI_EXAMPLES or expected <= seen.keys()
