"""What the site adds to the pages: lessons of the course, results of benchmarks, and links between them.

mkdocs calls these functions while it builds (`make docs`).
"""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
OTHERS = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "LICENSE")
FIGURES = (".png",)


def on_files(files, config):
    """Add what lies beside the pages."""
    for path in sorted(RESULTS.rglob("*")):
        if path.suffix in (".md", *FIGURES):
            name = f"results/{path.relative_to(RESULTS).as_posix()}"
            found = path.read_bytes() if path.suffix in FIGURES else shorten(path.read_text(encoding="utf-8"), name)
            files.append(File.generated(config, name, content=found))
    for name in ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"):
        files.append(File.generated(config, f"project/{name}", content=shorten((ROOT / name).read_text(encoding="utf-8"), f"project/{name}")))
    for lesson in sorted((ROOT / "docs" / "course").glob("[0-9]*.py")):
        text = to_page(lesson.read_text(encoding="utf-8"))
        files.append(File.generated(config, f"course/{lesson.stem}.md", content=text))
    for file in list(files):
        if file.src_uri.endswith(".py"):
            files.remove(file)
    return files


def on_page_markdown(markdown, page, config, files):
    """Lead links out of docs/ to the pages that were added, and drop those to source files."""
    return shorten(markdown, page.file.src_uri)


def shorten(markdown: str, name: str) -> str:
    """Return a page with links as the site has them; `name` is where it stands."""
    depth = name.count("/")
    up = "../" * depth
    markdown = re.sub(r"\]\((?:\.\./)*benchmarks/results/([^)]*)\)", rf"]({up}results/\1)", markdown)
    markdown = re.sub(r"\]\((?:\.\./)*docs/([^)]*)\)", rf"]({up}\1)", markdown)
    markdown = re.sub(r"\]\((?:\.\./)*(CHANGELOG|CONTRIBUTING|SECURITY)\.md([^)]*)\)", rf"]({up}project/\1.md\2)", markdown)
    markdown = re.sub(r"\]\((?:\.\./)*README\.md[^)]*\)", rf"]({up}index.md)", markdown) if depth == 0 else markdown
    if name.startswith("course/"):
        markdown = re.sub(r"\]\((\d\d_\w+)\.py\)", r"](\1.md)", markdown)
    # source files and folders are not part of the site
    markdown = re.sub(r"\[([^\]]*)\]\((?:\.\./)*(?:src|tests|examples|benchmarks)/[^)]*\)", r"\1", markdown)
    return re.sub(r"\[([^\]]*)\]\([\w-]+/?\)", r"\1", markdown)


def to_page(lesson: str) -> str:
    """Return the cells of a lesson as a page."""
    parts = []
    for cell in re.split(r"^# %%", lesson, flags=re.MULTILINE)[1:]:
        head, _, body = cell.partition("\n")
        if "markdown" in head:
            parts.append("\n".join(line.removeprefix("#").removeprefix(" ") for line in body.strip().splitlines()))
        elif body.strip():
            parts.append(f"```python\n{body.strip()}\n```")
    return "\n\n".join(parts) + "\n"
