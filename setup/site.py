"""Build the site into site/: `make site`.

MkDocs joins the pages of docs/ and the README with what the reference run has: its report and its
executed notebooks, rendered as on the machine that ran them; and with the pages of devices. A link
to a file of the repository that the site lacks leads to the repository, where its address is known,
and is plain text else.
"""

import html
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import yaml

from pomology.errors import PomologyError
from pomology.extras.collection import page
from pomology.paths import root

SOURCE = root() / "build" / "site"  # what MkDocs reads
SITE = root() / "site"
REFERENCE = Path("outputs/reference-cpu")
TOP = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "CHANGELOG.md": "CHANGELOG.md",
}
MARKDOWN = re.compile(r"(!?)\[((?:[^][]|\[[^][]*\])*)\]\(([^)\s]+)\)")
# Of docs/: pages that the search leaves out, since their many short entries hide the answers.
UNSEARCHED = Path("docs/log")
NO_SEARCH = "---\nsearch:\n  exclude: true\n---\n\n"
INDEX = SITE / "search" / "search_index.json"
HEADING = re.compile("<h1>(.*?)</h1>")
LEAD = re.compile('<p class="lead">(.*?)</p>')
HTML = re.compile(r'<a ([^>]*)href="([^"]+)"([^>]*)>(.*?)</a>', re.DOTALL)
ELSEWHERE = re.compile(r"\w+:|#")
LIST = re.compile(r"(?m)^(?!\s*[-*] |\s*$|\s*\d+\. |#|\|)(.+)\n(?=[-*] )")


def in_site(path: Path) -> Path | None:
    """Return where the site has a file of the repository, None for one that it lacks."""
    text = path.as_posix()
    if text in TOP:
        return Path(TOP[text])
    if text in ("collection", "collection/README.md"):
        return Path("collection/index.html")
    if text == REFERENCE.as_posix():
        return Path("report/index.html")
    executed = root() / REFERENCE / f"{path.stem}.ipynb"
    if path.suffix == ".ipynb":
        return Path("report") / f"{path.stem}.html" if executed.exists() else None
    for folder, there in ((Path("docs"), Path()), (REFERENCE, Path("report"))):
        if path.is_relative_to(folder) and (root() / path).is_file():
            return there / path.relative_to(folder)
    if path.match("collection/*.zip"):
        return path
    return None


def moved(target: str, origin: Path, page_in_site: Path) -> str | None:
    """Return a link of a file of the repository as the site has it, None for a dead one.

    origin: the file, from which the link goes. page_in_site: where it is there.
    """
    if ELSEWHERE.match(target):
        return target
    name, _, anchor = target.partition("#")
    path = Path(os.path.normpath(origin.parent / name))
    there = in_site(path)
    if there is None:
        address = repository()
        kind = "tree" if (root() / path).is_dir() else "blob"
        return f"{address}/{kind}/main/{path.as_posix()}" if address else None
    if page_in_site.suffix == ".html":
        there = there.with_suffix(".html") if there.suffix == ".md" else there
    link = Path(os.path.relpath(there, page_in_site.parent)).as_posix()
    return f"{link}#{anchor}" if anchor else link


def repository() -> str:
    """Return the address of the repository, as mkdocs.yml has it; "" where it is not known."""
    settings = yaml.load((root() / "mkdocs.yml").read_text(encoding="utf-8"), yaml.BaseLoader)
    return settings.get("repo_url", "").rstrip("/")


def copy_markdown(origin: Path) -> None:
    """Copy a page of the repository, with its links as the site has them."""
    target = in_site(origin)

    def link(match: re.Match) -> str:
        image, text, address = match.groups()
        there = moved(address, origin, target)
        return f"{image}[{text}]({there})" if there else text

    text = (root() / origin).read_text(encoding="utf-8")
    parts = re.split(r"(^```.*?^```)", text, flags=re.MULTILINE | re.DOTALL)
    # A block of code has no links. MkDocs, unlike GitHub, wants an empty line before a list.
    parts[::2] = [LIST.sub(r"\1\n\n", MARKDOWN.sub(link, part)) for part in parts[::2]]
    front = NO_SEARCH if origin.is_relative_to(UNSEARCHED) else ""
    write(target, front + "".join(parts))


def copy_html(text: str, origin: Path) -> None:
    """Write a page of the reference run, with its links as the site has them."""
    target = in_site(origin)

    def link(match: re.Match) -> str:
        before, address, after, inner = match.groups()
        there = moved(address, origin, target)
        return f'<a {before}href="{there}"{after}>{inner}</a>' if there else inner

    # These pages have no navigation of MkDocs's.
    top = '<main>\n<nav><p><a href="../index.html">← pomology</a></p></nav>'
    write(target.with_suffix(".html"), re.sub(r"<main[^>]*>", top, HTML.sub(link, text), count=1))


def write(target: Path, text: str) -> None:
    path = SOURCE / target
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def assemble() -> None:
    """Write all that MkDocs reads into SOURCE."""
    shutil.rmtree(SOURCE, ignore_errors=True)
    docs = [path.relative_to(root()) for path in (root() / "docs").rglob("*") if path.is_file()]
    for path in (*map(Path, TOP), *docs):
        if path.suffix == ".md":
            copy_markdown(path)
        else:
            (SOURCE / in_site(path)).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(root() / path, SOURCE / in_site(path))
    (SOURCE / "report").mkdir(parents=True, exist_ok=True)
    for path in sorted((root() / REFERENCE).iterdir()):
        origin = path.relative_to(root())
        if path.suffix == ".html":
            text = path.read_text(encoding="utf-8")
            copy_html(re.sub(r'(href="\w+\.ipynb">\w+)\.ipynb', r"\1", text), origin)
        elif path.suffix != ".ipynb":
            copy = shutil.copytree if path.is_dir() else shutil.copy
            copy(
                path, SOURCE / in_site(origin) if path.is_file() else SOURCE / "report" / path.name
            )
    for path in (root() / "collection").glob("[!.]*.zip"):
        (SOURCE / "collection").mkdir(exist_ok=True)
        shutil.copy(path, SOURCE / "collection")
    print("checking the shared runs, and writing the pages of devices")
    print("\n".join(page.build(root() / "collection", SOURCE / "collection", site=True)))


def add_devices_to_search() -> None:
    """Add the pages of devices to MkDocs's search, which reads Markdown only."""
    pages = [SITE / "collection" / "index.html", *(SITE / "collection" / "devices").glob("*.html")]
    index = json.loads(INDEX.read_text(encoding="utf-8"))
    for path in sorted(pages):
        text = path.read_text(encoding="utf-8")
        entry = {
            "location": path.relative_to(SITE).as_posix(),
            "title": first(HEADING, text),
            "text": first(LEAD, text),
        }
        index["docs"].append(entry)
    INDEX.write_text(json.dumps(index), encoding="utf-8")


def first(pattern: re.Pattern, text: str) -> str:
    """Return the words of a page's first element of a pattern."""
    words = html.unescape(re.sub("<[^>]+>", "", pattern.search(text)[1]))
    return html.escape(words, quote=False)


def main() -> None:
    """Assemble and build the site. Exits with MkDocs's status, with its message."""
    assemble()
    command = [sys.executable, "-P", "-m", "mkdocs", "build", "--strict", "--quiet"]
    # Without advice on its successor.
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=root(), check=False, env=environment)
    if done.returncode:
        sys.exit(done.returncode)
    add_devices_to_search()
    (SITE / "404.html").unlink()  # its links need an address, which is not known
    print(f"{SITE.relative_to(root())}/index.html")


if __name__ == "__main__":
    try:
        main()
    except PomologyError as error:
        sys.exit(f"make site: {error}")
