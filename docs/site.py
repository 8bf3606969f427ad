"""What the site adds to the pages: lessons of the course, results of benchmarks, and links between them.

mkdocs calls these functions while it builds (`make docs`).
"""

from __future__ import annotations

import re
from pathlib import Path

from markdown import Extension
from markdown.preprocessors import Preprocessor
from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PROJECT = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")


class Examples(Preprocessor):
    """Turn examples in docstrings, lines that begin with >>>, into code: Markdown would quote them."""

    def run(self, lines):
        found, inside, fenced = [], False, False
        for line in lines:
            own = line.strip()
            fenced ^= own.startswith("```")
            example = not fenced and (own.startswith(">>>") or (inside and own.startswith("...")))
            if example != inside:
                found += ["", "```python"] if example else ["```", ""]
            inside = example
            found.append(own[4:] if example else line)
        return [*found, "```"] if inside else found


class ExampleExtension(Extension):
    def extendMarkdown(self, md):
        md.preprocessors.register(Examples(md), "examples", 40)  # before fences are read


def on_config(config):
    """Read examples in docstrings as code."""
    config.markdown_extensions.append(ExampleExtension())
    return config


def on_files(files, config):
    """Add what lies beside the pages, and leave out what is no page."""
    found = {f"project/{name}": (ROOT / name).read_text(encoding="utf-8") for name in PROJECT}
    for path in RESULTS.rglob("*"):
        name = f"results/{path.relative_to(RESULTS).as_posix()}"
        if path.suffix == ".md":
            found[name] = path.read_text(encoding="utf-8")
        elif path.suffix == ".png":
            found[name] = path.read_bytes()
    for lesson in (ROOT / "docs" / "course").glob("[0-9]*.py"):
        found[f"course/{lesson.stem}.md"] = to_page(lesson.read_text(encoding="utf-8"))
    for file in [file for file in files if file.src_uri.endswith(".py")]:
        files.remove(file)
    for name in sorted(found):
        files.append(File.generated(config, name, content=found[name]))
    return files


def on_page_markdown(markdown, page, config, files):
    """Lead links out of docs/ to the pages that were added, and drop those to source files."""
    return shorten(markdown, page.file.src_uri)


def shorten(markdown: str, name: str) -> str:
    """Return a page with links as the site has them; `name` is where it stands."""
    depth = name.count("/")
    up = "../" * depth
    markdown = re.sub(r"\[(?:[\w-]+/)*[\w-]+\.md\]\((?!http)([^)#]+\.md)(#[^)]*)?\)", title_link, markdown)
    markdown = re.sub(r"\]\((?:\.\./)*benchmarks/results/([^)]*)\)", rf"]({up}results/\1)", markdown)
    markdown = re.sub(r"\]\((?:\.\./)*docs/([^)]*)\)", rf"]({up}\1)", markdown)
    markdown = re.sub(
        r"\]\((?:\.\./)*(CHANGELOG|CONTRIBUTING|SECURITY)\.md([^)]*)\)", rf"]({up}project/\1.md\2)", markdown
    )
    markdown = (
        re.sub(r"\]\((?:\.\./)*README\.md[^)]*\)", rf"]({up}index.md)", markdown) if depth == 0 else markdown
    )
    if name.startswith("course/"):
        markdown = re.sub(r"\]\((\d\d_\w+)\.py\)", r"](\1.md)", markdown)
    # source files and folders are not part of the site
    markdown = re.sub(r"\[([^\]]*)\]\((?:\.\./)*(?:src|tests|examples|benchmarks)/[^)]*\)", r"\1", markdown)
    return re.sub(r"\[([^\]]*)\]\([\w-]+/?\)", r"\1", markdown)


def title_link(found: re.Match[str]) -> str:
    """Name a link after the page that it leads to, where its text was the name of a file."""
    target = found[1].removeprefix("docs/").replace("../", "")
    places = (ROOT / "docs" / target, ROOT / target)
    page = next((place for place in places if place.is_file()), None)
    first = page.read_text(encoding="utf-8").partition("\n")[0] if page else ""
    text = first.removeprefix("# ").replace("`", "") if first.startswith("# ") else Path(target).stem
    return f"[{text}]({found[1]}{found[2] or ''})"


def to_page(lesson: str) -> str:
    """Return the cells of a lesson as a page."""
    parts = []
    for cell in re.split(r"^# %%", lesson, flags=re.MULTILINE)[1:]:
        head, _, body = cell.partition("\n")
        if "markdown" in head:
            parts.append(
                "\n".join(line.removeprefix("#").removeprefix(" ") for line in body.strip().splitlines())
            )
        elif body.strip():
            parts.append(f"```python\n{body.strip()}\n```")
    return "\n\n".join(parts) + "\n"
