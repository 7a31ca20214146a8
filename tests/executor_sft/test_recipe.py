"""Recipes are read strictly."""

from pathlib import Path

import pytest

from executor_sft.recipe import Recipe, load_recipe
from router.errors import BadConfig


def test_the_papers_settings() -> None:
    """Those of TBSS, appendix D."""
    recipe = load_recipe("paper-qwen3-1.7b")
    assert (recipe.method, recipe.epochs, recipe.batch, recipe.learning_rate) == ("full", 3, 16, 1e-5)
    assert (recipe.schedule, recipe.warm_up_ratio, recipe.weight_decay) == ("cosine", 0.03, 0.01)
    assert (recipe.precision, recipe.max_length) == ("bf16", 4096)


def test_the_mini_models_get_an_adapter() -> None:
    """On all linear layers, of the rank that their engine takes."""
    recipe = load_recipe("mini")
    assert (recipe.method, recipe.rank, recipe.target_modules) == ("lora", 32, "all-linear")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('method = "lora"\nlearning_rate = 1e-3\nepoch = 3', "unknown field `epoch`"),
        ('method = "qlora"\nlearning_rate = 1e-3', "qlora"),
        ('method = "full"', "learning_rate"),
        ('method = "full"\nlearning_rate = 0.0', "learning_rate"),
        ("method = ", r"own\.toml"),
    ],
)
def test_a_recipe_that_is_wrong_says_where(tmp_path: Path, text: str, said: str) -> None:
    """Unknown and missing keys, and values that cannot be."""
    (tmp_path / "own.toml").write_text(text)
    with pytest.raises(BadConfig, match=said):
        load_recipe(str(tmp_path / "own.toml"))


def test_an_unknown_recipe_names_those_that_there_are() -> None:
    """And that a file will do."""
    with pytest.raises(BadConfig, match=r"mini, paper-qwen3-1\.7b"):
        load_recipe("maxi")


def test_the_batch_is_split_over_devices() -> None:
    """What does not fit on them at once is accumulated; what cannot be split is refused."""
    recipe = Recipe(method="full", learning_rate=1e-5, batch=16, device_batch=2)
    assert [recipe.accumulation(devices) for devices in (1, 2, 8)] == [8, 4, 1]
    for devices in (3, 16):
        with pytest.raises(BadConfig, match=f"over {devices} devices"):
            recipe.accumulation(devices)
