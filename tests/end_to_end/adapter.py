"""A LoRA adapter without any training: `python -m tests.end_to_end.adapter MODEL FOLDER DEVIATION`.

DEVIATION is that of its random weights; with 0, it changes nothing.
"""

import sys

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

RANK = 8


def main(model: str, folder: str, deviation: float) -> None:
    """Write it."""
    torch.manual_seed(0)
    adapted = get_peft_model(
        AutoModelForCausalLM.from_pretrained(model),
        LoraConfig(r=RANK, lora_alpha=RANK, target_modules=["q_proj", "v_proj"]),
    )
    for name, weights in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weights, std=deviation)
    adapted.save_pretrained(folder)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]))
