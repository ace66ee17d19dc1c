"""The commands of the command line: their arguments, and what each of them does. A class for each."""

from app.settings import CommandSettings
from app.subcommands.attach import Attach
from app.subcommands.config import Config
from app.subcommands.dashboard import Play, Replay, Watch
from app.subcommands.engine import Bench, Run, Verify
from app.subcommands.runs import Compare, Export, Presets
from app.subcommands.serve import Serve

__all__ = ["SUBCOMMANDS", "Watch"]

SUBCOMMANDS: dict[str, type[CommandSettings]] = {
    "presets": Presets,
    "play": Play,
    "compare": Compare,
    "replay": Replay,
    "attach": Attach,
    "export": Export,
    "serve": Serve,
    "run": Run,
    "verify": Verify,
    "bench": Bench,
    "config": Config,
}
