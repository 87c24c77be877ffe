"""Copy the three demo models and their texts: python copy_demo_models.py DIRECTORY"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from lbrx.demo.models import demo_models


def main(directory: Path) -> None:
    models = demo_models()
    directory.mkdir(parents=True, exist_ok=True)
    for model in (models.base, models.prose, models.code):
        shutil.copytree(model, directory / model.name, dirs_exist_ok=True)
    for text in (models.prose_text, models.code_text):
        shutil.copy(text, directory / text.name)
    print("copied to", directory)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
