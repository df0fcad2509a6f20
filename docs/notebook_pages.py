"""What the site's build makes of notebooks: a page each, with the outputs that are stored in them.

Code is a block of Python, text a block, HTML stays HTML, and pictures are files beside the page.
The notebook itself is on the site as well, to be downloaded.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
DOWNLOAD = "[Download this notebook]({name}.ipynb)"


def on_files(files: Any, config: Any) -> Any:
    from mkdocs.structure.files import File

    for path in sorted(DOCS.glob("notebooks/*.ipynb")):
        page, pictures = converted(path)
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=page))
        for name, picture in pictures.items():
            files.append(File.generated(config, f"notebooks/{name}", content=picture))
    return files


def converted(path: Path) -> tuple[str, dict[str, bytes]]:
    """The page of a notebook as Markdown, and its pictures by file name."""
    parts: list[str] = []
    pictures: dict[str, bytes] = {}
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = joined(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            data = output.get("data", {})
            if output["output_type"] == "stream":
                parts.append(f"```text\n{joined(output['text']).rstrip()}\n```")
            elif "text/html" in data:
                parts.append(f'<div class="notebook-output">{joined(data["text/html"])}</div>')
            elif "image/png" in data:
                name = f"{path.stem}-{len(pictures) + 1}.png"
                pictures[name] = base64.b64decode(data["image/png"])
                parts.append(f"![Figure {len(pictures)}]({name})")
            elif "text/plain" in data:
                parts.append(f"```text\n{joined(data['text/plain'])}\n```")
            else:
                raise ValueError(f"{path.name} has an output that is not shown: {sorted(output)}")
    parts.insert(1, DOWNLOAD.format(name=path.stem))
    return "\n\n".join(parts) + "\n", pictures


def joined(text: str | list[str]) -> str:
    """Text of a notebook, which may be stored as lines."""
    return text if isinstance(text, str) else "".join(text)
