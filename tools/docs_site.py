"""A hook of MkDocs: brings files that lie outside of docs/ into the site, and leads links there.

Pages link to the README, to examples and to headers as they lie in the repository, so that the
links also work where the repository is browsed. In the site each such file becomes a page.
"""

from __future__ import annotations

import os.path
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parent))  # MkDocs loads a hook by its path.

from check_docs import LINK, OTHER_SITE, resolve, text_lines
from tracked_files import ROOT

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

# Pages that have another place in the site.
MOVED = {
    "README.md": "index.md",
    "docs/README.md": "pages.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
# What the search shows first. By the first of these that a page's place begins with; others: 1.
BOOSTS = {"guides/": 4.0, "running/": 3.0, "index.md": 3.0, "reference/": 2.0, "sources/": 0.1}
BOOSTS |= dict.fromkeys(("inside/", "lab/", "changelog.md", "contributing.md", "pages.md"), 0.3)
LANGUAGES = {".py": "python", ".h": "c", ".hpp": "cpp"}


def page_of(path: str) -> str:
    """Returns the page of the site that shows `path`, which is relative to the repository."""
    if path.startswith("docs/") and path not in MOVED:
        return path.removeprefix("docs/")
    return MOVED.get(path, f"sources/{path}.md")


def path_of(page: str) -> str:
    """Returns the file of the repository that `page` of the site shows."""
    for path, name in MOVED.items():
        if name == page:
            return path
    return f"docs/{page}"


def linked_files(path: str, text: str) -> set[str]:
    """Returns the files of the repository to which the page at `path` has links."""
    targets = {target for _, line in text_lines(text) for target in LINK.findall(line)}
    paths = {resolve(path, target.partition("#")[0]) for target in targets}
    return {found for found in paths if (ROOT / found).is_file()}


def with_links_of_site(path: str, text: str) -> str:
    """Returns the text of the page at `path` with its links as the site needs them."""
    here = os.path.dirname(page_of(path))  # noqa: PTH120  pathlib has no relpath() up a folder.

    def lead(match: re.Match[str]) -> str:
        name, hash_sign, anchor = match[1].partition("#")
        target = resolve(path, name)
        if not name or OTHER_SITE.match(name) or not (ROOT / target).is_file():
            return match[0]
        return f"]({os.path.relpath(page_of(target), here)}{hash_sign}{anchor})"

    lines = text.split("\n")
    for number, line in text_lines(text):
        lines[number - 1] = LINK.sub(lead, line)
    return "\n".join(lines)


def on_config(config: MkDocsConfig) -> None:
    """Puts the version at the foot of each page."""
    version = re.search(r'__version__ = "(.+)"', (ROOT / "lightcc" / "__init__.py").read_text())
    config.copyright = f"lightcc {version[1]}, Apache-2.0" if version else None


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Adds what is moved, and a page for each source file that a page has a link to."""
    from mkdocs.structure.files import File  # Tests of what is above do without MkDocs.

    if home := files.get_file_from_path("README.md"):
        files.remove(home)
    paths = [path_of(file.src_uri) for file in files.documentation_pages()] + list(MOVED)
    sources = {found for path in paths for found in linked_files(path, (ROOT / path).read_text())}
    for path in sorted(sources | set(MOVED)):
        if path.startswith("docs/") and path not in MOVED:
            continue
        text = (ROOT / path).read_text()
        if path not in MOVED:
            language = LANGUAGES.get(Path(path).suffix, "text")
            text = f"# {Path(path).name}\n\n`{path}`\n\n````{language}\n{text}````\n"
        files.append(File.generated(config, page_of(path), content=text))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001  MkDocs passes all by name.
    """Leads the links of a page to pages of the site, and tells the search how much it counts."""
    boosts = [boost for place, boost in BOOSTS.items() if page.file.src_uri.startswith(place)]
    page.meta["search"] = {"boost": boosts[0] if boosts else 1.0}
    if page.file.src_uri.startswith("sources/"):
        return markdown
    return with_links_of_site(path_of(page.file.src_uri), markdown)
