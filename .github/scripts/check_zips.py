"""Check the zips of an issue or a pull request, for .github/workflows/collection.yml.

An issue has the zips that are attached to its text, a pull request those that it adds or replaces
in collection/. `pomology check-zip` compares them with the rest of the collection, whose older zips
are not judged again. A pull request without zips changes the code that decides: the summary then
has what it says of the collection, without a verdict.

Exit status: 0, or 1 where a pull request's zip is refused or a check did not finish. The lines are
the step's output `lines`, and in the summary of the job.

The event is read from its file, so that the text of an issue is never part of a command.
"""

import json
import os
import re
import secrets
import subprocess
import sys
from pathlib import Path

# What GitHub makes of a file that is dropped into a field. The address ends with its name.
ATTACHED = re.compile(
    r"(?:^|(?<=[\s(<]))https://github\.com/user-attachments/files/[0-9]+/[A-Za-z0-9._-]+\.zip"
    r"(?=[\s)>]|$)"
)
MOST_ZIPS = 5
MOST_BYTES = 50_000_000  # of a zip; that of a full run has 1 MB
MOST_CHARACTERS = 20_000  # of a comment's lines, to stay below GitHub's limit of 65,536
LIMIT_S = 1200  # of a check
POMOLOGY = ".venv/bin/pomology"
CURL = ("curl", "--silent", "--show-error", "--fail", "--location", "--proto", "=https")
CURL += ("--max-time", "120", "--max-filesize", str(MOST_BYTES))


def log(text: str) -> None:
    """Print text of others to the log, where a line that starts with `::` would be a command."""
    print("".join(f"| {line}\n" for line in text.splitlines()), end="", flush=True)


def attached(body: str) -> list[str]:
    """Return the addresses of the zips that are attached to the text of an issue."""
    return list(dict.fromkeys(ATTACHED.findall(body)))


def download(addresses: list[str]) -> tuple[list[str], list[str]]:
    """Return the paths of the downloaded zips, and a line for each failed download."""
    paths, failed = [], []
    for number, address in enumerate(addresses, start=1):
        # A folder for each, since two files may have the same name.
        path = Path("attached", str(number), address.rpartition("/")[2])
        path.parent.mkdir(parents=True)
        command = [*CURL, "--output", str(path), "--", address]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode:
            log(done.stderr)
            status = f"exit status {done.returncode} of curl"
            failed.append(f"{path.name}: not downloaded ({status}); edit the issue to try again")
        else:
            paths.append(str(path))
    return paths, failed


def added() -> list[str]:
    """Return the zips that a pull request adds to collection/, or replaces there.

    HEAD is its merge with the base branch, so the first parent is the current base.
    """
    command = ("git", "diff", "--name-only", "-z", "--no-renames", "--diff-filter=AMT")
    pair = ("HEAD^1", "HEAD", "--", ":(glob)collection/*.zip")
    done = subprocess.run([*command, *pair], check=True, capture_output=True, text=True)
    return [name for name in done.stdout.split("\0") if name]


def check(*arguments: str) -> tuple[list[str], int | None]:
    """Return the lines of a command of pomology and its exit status, None if it did not finish."""
    command = [POMOLOGY, *arguments]
    options = {"capture_output": True, "text": True, "errors": "replace", "timeout": LIMIT_S}
    try:
        done = subprocess.run(command, check=False, **options)
    except subprocess.TimeoutExpired:
        return [f"The check took longer than {LIMIT_S // 60} minutes and was stopped."], None
    log(done.stdout + done.stderr)
    lines = done.stdout.splitlines()
    # A traceback has the exit status 1, too, but no line of a refused zip.
    refused = any(": refused: " in line for line in lines)
    if lines and done.returncode == int(refused):
        return lines, done.returncode
    reason = next(reversed(done.stderr.split("\n")[:-1]), "") or "no message"
    return [f"The check ended with an error (exit status {done.returncode}): {reason}"], None


def check_issue(body: str) -> tuple[list[str], int]:
    """Return the lines on the zips of an issue, and 1 if one of them could not be checked."""
    addresses = attached(body)
    if not addresses:
        return ["No zip is attached to this issue; edit it and drag the zip into its field."], 0
    paths, lines = download(addresses[:MOST_ZIPS])
    failed = bool(lines)
    if paths:
        checked, status = check("check-zip", *paths)
        lines = checked + lines
        failed |= status is None
    if len(addresses) > MOST_ZIPS:
        more = len(addresses) - MOST_ZIPS
        lines.append(f"{more} more zips were not checked; attach them to another issue")
    return lines, int(failed)


def check_pull_request() -> tuple[list[str], int]:
    """Return the lines on the zips of a pull request, and 1 if it must not be merged."""
    zips = added()
    if zips:
        lines, status = check("check-zip", *zips)
        return lines, int(status != 0)
    lines, status = check("collect")
    return lines, int(status is None)


def short(lines: list[str]) -> str:
    """Return the lines as a text that fits into a comment."""
    text = "\n".join(lines)
    if len(text) <= MOST_CHARACTERS:
        return text
    return text[:MOST_CHARACTERS].rpartition("\n")[0] + "\n… (the log has all lines)"


def main() -> int:
    event = json.loads(Path(os.environ["GITHUB_EVENT_PATH"]).read_text(encoding="utf-8"))
    if "issue" in event:
        lines, status = check_issue(event["issue"]["body"] or "")
    else:
        lines, status = check_pull_request()
    text = short(lines)
    # No line of the text can end it, since nobody knows this word before.
    end = secrets.token_hex(16)
    with open(os.environ["GITHUB_OUTPUT"], "a", encoding="utf-8") as output:
        output.write(f"lines<<{end}\n{text}\n{end}\n")
    with open(os.environ["GITHUB_STEP_SUMMARY"], "a", encoding="utf-8") as summary:
        summary.write("".join(f"    {line}\n" for line in text.splitlines()))
    return status


if __name__ == "__main__":
    sys.exit(main())
