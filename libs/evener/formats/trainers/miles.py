"""miles: `Sample` (radixark/miles, miles/utils/types.py). It grew out of slime's and has the same fields, as far as rows fill them."""

from typing import Final

from evener.formats.trainer_format import TrainerFormat
from evener.formats.trainers.slime import ONCE, records, trained

FORMAT: Final = TrainerFormat(name="miles", trainer="miles of August 2026: Sample", records=records, trained=trained, once=ONCE)
