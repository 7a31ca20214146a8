"""LoRA adapters with random weights."""

from pathlib import Path

RANK = 8


def write_adapter(model: Path, folder: Path, deviation: float) -> None:
    """Write an adapter for `model` into `folder`.

    `deviation` is that of its random weights; with 0, it changes nothing.
    """
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    adapted = get_peft_model(
        AutoModelForCausalLM.from_pretrained(model),
        LoraConfig(r=RANK, lora_alpha=RANK, target_modules=["q_proj", "v_proj"]),
    )
    for name, weights in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weights, std=deviation)
    adapted.save_pretrained(folder)
