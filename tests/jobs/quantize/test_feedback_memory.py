"""Error feedback needs memory for one layer: the peak of a process does not grow with the number of layers."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import lbrx
from lbrx.demo.models import demo_models
from lbrx.jobs.imatrix.calibration import calibration_text

HIDDEN, INNER, HEADS = 256, 512, 4
FEW, MANY = 2, 14
LAYER_BYTES = 4 * (4 * HIDDEN * HIDDEN + 3 * HIDDEN * INNER)  # in f32

# glibc then returns freed arrays to the system at once; it would keep up to 32 MiB, more with every layer.
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "131072", "MALLOC_ARENA_MAX": "1"}

# Prints the peak of a first run, which loads kernels, and those of two models.
PROGRAM = """
import sys, threading
from pathlib import Path
import lbrx
from lbrx.base.system import anonymous_bytes
from lbrx.jobs.quantize.feedback import encode_layers
from lbrx.jobs.quantize.options import parse_options
from lbrx.jobs.quantize.quantize import plan_quantize

def peak(source, out, text):
    ended, found = threading.Event(), [anonymous_bytes()]
    def look():
        while not ended.wait(0.002):
            found.append(anonymous_bytes())
    looking = threading.Thread(target=look)
    looking.start()
    planned = plan_quantize(source, out, parse_options("q4_0")).quantization
    encode_layers(source, out, planned, [text])
    ended.set()
    looking.join()
    return max(found)

few, many, text = map(Path, sys.argv[1:])
with lbrx.using(threads=1):
    for number, source in enumerate((few, few, many)):
        print(peak(source, text.with_name(f"{number}.gguf"), text))
"""


def model_of(folder: Path, layers: int) -> Path:
    """A model of random weights with the tokenizer of the demo."""
    base = demo_models().base
    folder.mkdir()
    for path in Path(base).iterdir():
        if path.suffix in (".json", ".model", ".jinja"):
            shutil.copy(path, folder)
    config = json.loads((folder / "config.json").read_text())
    sizes = {"hidden_size": HIDDEN, "intermediate_size": INNER, "num_hidden_layers": layers}
    heads = {"num_attention_heads": HEADS, "num_key_value_heads": HEADS, "head_dim": HIDDEN // HEADS}
    (folder / "config.json").write_text(json.dumps(config | sizes | heads | {"tie_word_embeddings": True}))
    shapes = {"model.embed_tokens.weight": (config["vocab_size"], HIDDEN), "model.norm.weight": (HIDDEN,)}
    for number in range(layers):
        prefix = f"model.layers.{number}."
        shapes |= {f"{prefix}self_attn.{each}_proj.weight": (HIDDEN, HIDDEN) for each in "qkvo"}
        shapes |= {f"{prefix}mlp.{each}_proj.weight": (INNER, HIDDEN) for each in ("gate", "up")}
        shapes[f"{prefix}mlp.down_proj.weight"] = (HIDDEN, INNER)
        shapes |= {f"{prefix}{each}_layernorm.weight": (HIDDEN,) for each in ("input", "post_attention")}
    random = {name: lbrx.normal(shape, seed=1, stream=name) * 0.05 for name, shape in shapes.items()}
    lbrx.save(folder / "model.safetensors", {name: each.to("bf16") for name, each in random.items()})
    return folder


def test_the_peak_does_not_grow_with_layers(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text(calibration_text()[:1500])
    few, many = (model_of(tmp_path / f"of_{layers}", layers) for layers in (FEW, MANY))
    command = [sys.executable, "-c", PROGRAM, str(few), str(many), str(text)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | ALLOCATOR)
    assert done.returncode == 0, done.stderr
    _, of_few, of_many = map(int, done.stdout.split())
    assert of_many - of_few < LAYER_BYTES, (of_few, of_many)
    assert len(list((tmp_path / ".2.gguf.feedback").glob("blk.*.blocks"))) == 7 * MANY
