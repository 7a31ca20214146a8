"""A training's progress in the terminal, in place of transformers' own."""

from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from transformers import TrainerCallback


class TrainingProgress(TrainerCallback):  # type: ignore[misc] # transformers is not typed here
    """A bar with the loss of the last step."""

    def __init__(self) -> None:
        columns = (TextColumn("training"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._bar = Progress(*columns, TextColumn("{task.description}"), console=Console(stderr=True))
        self._task = self._bar.add_task("")

    def on_train_begin(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
        """Show it, from where the training goes on."""
        self._bar.update(self._task, total=state.max_steps, completed=state.global_step)
        self._bar.start()

    def on_step_end(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
        """One more."""
        self._bar.update(self._task, completed=state.global_step)

    def on_log(self, _args: Any, _state: Any, _control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        """What was measured."""
        if logs and "loss" in logs:
            self._bar.update(self._task, description=f"loss {float(logs['loss']):.4f}")

    def on_train_end(self, _args: Any, _state: Any, _control: Any, **_: Any) -> None:
        """Leave the bar as it is."""
        self._bar.stop()
