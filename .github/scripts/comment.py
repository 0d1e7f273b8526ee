"""Comment on an issue with the lines in $RESULT, for .github/workflows/collection.yml.

The first check of an issue adds a comment, later ones edit it. The lines come from a job that reads
foreign files, so they are shown as plain text, in which nothing is a link or mentions anybody.
"""

import json
import os
import subprocess
import sys
import unicodedata
from pathlib import Path
from typing import Any

MARKER = "<!-- the check of the attached zips -->"
AUTHOR = "github-actions[bot]"  # whose comments the token of a workflow writes
MOST_CHARACTERS = 25_000


def plain(text: str) -> str:
    """Return a text without what could end a block of code, or hide or reorder its characters."""
    kept = (
        " " if unicodedata.category(letter)[0] == "C" and letter != "\n" else letter
        for letter in text[:MOST_CHARACTERS].replace("`", "'")
    )
    return "".join(kept).strip()


def comment(lines: str) -> str:
    """Return the Markdown of the comment."""
    run = "{GITHUB_SERVER_URL}/{GITHUB_REPOSITORY}/actions/runs/{GITHUB_RUN_ID}"
    text = plain(lines) or "The check did not finish; its log says why."
    log = f"[Log of the check]({run.format_map(os.environ)})"
    return f"{MARKER}\n```text\n{text}\n```\n{log}. Edit the issue to check again.\n"


def gh_api(*arguments: str, **sent: str) -> Any:
    """Return the answer of GitHub's API. sent: the fields of a request."""
    command = ["gh", "api", *arguments, *(("--input", "-") if sent else ())]
    text = json.dumps(sent) if sent else None
    done = subprocess.run(command, input=text, check=False, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"gh api {arguments[-1]}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def main() -> None:
    event = json.loads(Path(os.environ["GITHUB_EVENT_PATH"]).read_text(encoding="utf-8"))
    repository = f"repos/{os.environ['GITHUB_REPOSITORY']}/issues"
    comments = f"{repository}/{event['issue']['number']}/comments"
    body = comment(os.environ.get("RESULT", ""))
    pages = gh_api("--paginate", "--slurp", f"{comments}?per_page=100")
    # Others can write the marker, too.
    own = [
        each["id"]
        for page in pages
        for each in page
        if each["user"]["login"] == AUTHOR and each["body"].startswith(MARKER)
    ]
    if own:
        gh_api("--method", "PATCH", f"{repository}/comments/{own[0]}", body=body)
    else:
        gh_api("--method", "POST", comments, body=body)


if __name__ == "__main__":
    main()
