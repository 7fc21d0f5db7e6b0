"""`python -m tests.support.find_models NAME …`: where each model is found, or the sentence of its refusal.

A process of its own, because the hub's client reads its variables when it is imported.
"""

import sys
from pathlib import Path

from server.configuration.settings import Config
from server.errors import ConfigError
from server.process.model.find_model import with_model

for name in sys.argv[1:]:
    try:
        found = str(with_model(Config(model=Path(name)), lambda _line: None).model)
    except ConfigError as error:
        found = str(error)
    sys.stdout.write(f"{found}\n")
