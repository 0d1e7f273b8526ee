"""The workflows: their rights and pins, and their scripts with mocks of curl, gh and pomology."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections import defaultdict

import pytest
import yaml

from pomology.__main__ import main
from pomology.extras import commands
from pomology.paths import root

GITHUB = root() / ".github"
TEXTS = {path.stem: path.read_text("utf-8") for path in sorted(GITHUB.glob("workflows/*.yml"))}
WORKFLOWS = {name: yaml.safe_load(text) for name, text in TEXTS.items()}
JOBS = {
    (name, job): {"permissions": workflow["permissions"], **settings}
    for name, workflow in WORKFLOWS.items()
    for job, settings in workflow["jobs"].items()
}
FORM = yaml.safe_load((GITHUB / "ISSUE_TEMPLATE" / "run.yml").read_text(encoding="utf-8"))
FIELDS = {field["id"]: field["attributes"] for field in FORM["body"] if "id" in field}
ADDRESS = "https://github.com/user-attachments/files/23456789/"
PROGRAMS = {
    ".venv/bin/pomology": """#!/bin/sh
printf '%s\\n' "$@" >>called
printf "$SAYS"
printf "$COMPLAINS" >&2
exit $STATUS
""",
    "bin/curl": """#!/bin/sh
for address; do :; done
case $address in *missing*) echo "curl: (22) 404" >&2; exit 22 ;; esac
while [ "$1" != --output ]; do shift; done
echo "$address" >>fetched
ln -s "$ZIP" "$2"
""",
    # Keeps the comments in a file, and lists one per page.
    "bin/gh": f"""#!{sys.executable} -SE
import json, sys
path = next(word for word in sys.argv if word.startswith("repos/jo/pomology/issues/"))
comments = json.load(open("comments.json"))
if "POST" in sys.argv:
    assert path.endswith("/issues/7/comments")
    comments.append({{"id": len(comments), "user": {{"login": "github-actions[bot]"}}}})
    comments[-1].update(json.load(sys.stdin))
elif "PATCH" in sys.argv:
    comments[int(path.rpartition("/comments/")[2])].update(json.load(sys.stdin))
elif "--slurp" in sys.argv:
    comments = [[comment] for comment in comments]
json.dump(comments, sys.stdout)
if "--slurp" not in sys.argv:
    json.dump(comments, open("comments.json", "w"))
""",
    "bin/make": """#!/bin/sh
echo "make $*" >>called
touch outputs/mac.zip
""",
}


def body(**values):
    """Return the text of an issue by the form, as GitHub writes it."""
    parts = []
    for name, field in FIELDS.items():
        boxes = "\n".join(f"- [x] {option['label']}" for option in field.get("options", ()))
        text = values.get(name) or boxes or "_No response_"
        parts.append(f"### {field['label']}\n\n{text}")
    return "\n\n".join(parts)


def zips(*names):
    """Return what GitHub writes into a field for each file that is dropped there."""
    return "\n".join(f"[{name}]({ADDRESS}{name})" for name in names)


class Checkout:
    """A folder with the scripts of the workflows and mock programs."""

    def __init__(self, folder):
        self.folder = folder
        shutil.copytree(GITHUB / "scripts", folder / ".github" / "scripts")
        for name, text in PROGRAMS.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)
        (folder / "outputs").mkdir()
        (folder / "comments.json").write_text("[]")
        (folder / "a.zip").touch()
        self.environment = os.environ | {
            "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "GITHUB_EVENT_PATH": "event.json",
            "GITHUB_OUTPUT": "output",
            "GITHUB_STEP_SUMMARY": "summary",
            "GITHUB_SERVER_URL": "https://github.com",
            "GITHUB_REPOSITORY": "jo/pomology",
            "GITHUB_RUN_ID": "12",
            "ZIP": str(folder / "a.zip"),
        }

    def script(self, name, status=0, **variables):
        """Return what a script prints. status: its expected exit status."""
        program = "sh" if name.endswith(".sh") else sys.executable
        options = {"env": self.environment | variables, "capture_output": True, "text": True}
        command = [program, f".github/scripts/{name}"]
        done = subprocess.run(command, cwd=self.folder, check=False, **options)
        assert done.returncode == status, done.stdout + done.stderr
        assert not (self.folder / "pwned").exists()
        return done.stdout

    def check(self, event, says="", complains="", ends=0, status=0, **variables):
        """Return the lines of a check in which pomology says something and ends."""
        shutil.rmtree(self.folder / "attached", ignore_errors=True)
        (self.folder / "event.json").write_text(json.dumps(event))
        (self.folder / "output").write_text("")
        mocked = {"SAYS": says, "COMPLAINS": complains, "STATUS": str(ends)}
        self.log = self.script("check_zips.py", status, **(mocked | variables))
        text = (self.folder / "output").read_text()
        return re.fullmatch(r"lines<<(\w+)\n(.*)\n\1\n", text, re.DOTALL)[2]

    def issue(self, text, *arguments, **settings):
        """Check an issue, comment, and return the lines that the last comment shows."""
        lines = self.check({"issue": {"number": 7, "body": text}}, *arguments, **settings)
        self.script("comment.py", RESULT=lines)
        return shown(self.comments()[-1])

    def comments(self):
        return json.loads((self.folder / "comments.json").read_text())

    def called(self):
        """Return the arguments with which pomology was called, one per line."""
        path = self.folder / "called"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def checkout(tmp_path):
    return Checkout(tmp_path)


def shown(comment):
    """Return the lines that a comment shows as a block of code."""
    return re.search(r"\n```text\n(.*)\n```\n", comment["body"], re.DOTALL)[1].split("\n")


def test_actions_are_pinned_to_one_commit_each():
    used = defaultdict(set)
    for line in re.findall(r"^.*\buses:.*$", "\n".join(TEXTS.values()), re.MULTILINE):
        pinned = re.fullmatch(r"[ -]*uses: ([\w/-]+)@([0-9a-f]{40} # v\d+\.\d+\.\d+)", line)
        assert pinned, line
        used[pinned[1]].add(pinned[2])
    assert used and all(len(commits) == 1 for commits in used.values()), used


def test_jobs_have_the_least_rights():
    """Only two jobs can write, and none of them reads the files of others or runs their code."""
    writing = {}
    for name, job in JOBS.items():
        assert isinstance(job["permissions"], dict), name
        rights = {right for right, level in job["permissions"].items() if level == "write"}
        if rights:
            writing[name] = (rights, [step["run"] for step in job["steps"] if "run" in step])
    assert writing == {
        ("collection", "comment"): ({"issues"}, ["python3 .github/scripts/comment.py"]),
        ("pages", "deploy"): ({"pages", "id-token"}, []),
    }
    assert all("write" not in str(each["permissions"]) for each in WORKFLOWS.values())
    assert not re.search("pull_request_target|workflow_run|secrets", "".join(TEXTS.values()))


@pytest.mark.parametrize("name", JOBS, ids="-".join)
def test_no_step_keeps_the_token_or_has_text_of_others_as_code(name):
    for step in JOBS[name]["steps"]:
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False
        assert "${{" not in step.get("run", "")
        assert "body" not in str(step) and "title" not in str(step)


def test_the_check_runs_for_the_form_and_for_the_code_that_decides():
    condition = JOBS["collection", "check"]["if"]
    assert f"contains(github.event.issue.body, '### {FIELDS['zip']['label']}')" in condition
    for pattern in WORKFLOWS["collection"][True]["pull_request"]["paths"]:  # YAML reads `on` so
        assert any(path.is_file() for path in root().glob(pattern.replace("**", "**/*"))), pattern
    assert "${{ !cancelled()" in JOBS["collection", "comment"]["if"]
    assert FIELDS["license"]["options"][0]["required"] is True


def matched(path, patterns):
    """Return whether a path filter has a file of the repository."""
    expressions = [
        re.escape(each).replace(r"\*\*", ".*").replace(r"\*", "[^/]*") for each in patterns
    ]
    return any(re.fullmatch(expression, path) for expression in expressions)


def test_the_check_runs_for_all_extras_that_decide():
    """The modules are those that Python loads for a check."""
    program = (
        "import sys, pomology.extras.collection.page\n"
        "print(*(name for name in sys.modules if name.startswith('pomology.extras.')))"
    )
    command = [sys.executable, "-P", "-c", program]
    environment = os.environ | {"PYTHONPATH": str(root() / "lib")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    patterns = WORKFLOWS["collection"][True]["pull_request"]["paths"]
    modules = [name for name in done.stdout.split() if name.count(".") > 2]
    assert "pomology.extras.prediction.model" in modules
    for name in modules:
        assert matched(f"lib/{name.replace('.', '/')}.py", patterns), name
    # The fitted numbers and the data sheets.
    assert matched("lib/pomology/articles/data/prediction.json", patterns)


def test_the_pages_are_published_after_a_change_of_what_makes_them():
    patterns = WORKFLOWS["pages"][True]["push"]["paths"]
    source = (root() / "setup" / "site.py").read_text(encoding="utf-8")
    top = re.findall(r'^    "(\w+\.md)": ', source, re.MULTILINE)
    assert "README.md" in top
    made_of = (
        *top,
        "mkdocs.yml",
        "setup/site.py",
        "docs/how-to/cite.md",
        "outputs/reference-cpu/index.html",
        "collection/a.zip",
        "lib/pomology/resources/page/devices.html.j2",
        "lib/pomology/articles/data/elsewhere/a.csv",
    )
    assert [path for path in made_of if not matched(path, patterns)] == []


def test_the_form_names_commands_that_exist():
    text = FORM["body"][0]["attributes"]["value"]
    makefile = (root() / "Makefile").read_text(encoding="utf-8")
    targets = re.findall(r"`make (\w+)", text)
    assert targets and all(f"\n{target}: " in makefile for target in targets)
    (command,) = set(re.findall(r"pomology (\w+)", text))
    assert command in commands()


def test_a_zip_of_the_form_gets_one_comment_with_its_lines_which_an_edit_edits(checkout):
    text = body(zip=zips("m4.zip"), remarks="low power mode")
    assert checkout.issue(text, "m4.zip: accepted\n") == ["m4.zip: accepted"]
    assert checkout.called() == ["check-zip", "attached/1/m4.zip"]
    (comment,) = checkout.comments()
    assert "(https://github.com/jo/pomology/actions/runs/12)" in comment["body"]
    assert "m4.zip: accepted" in (checkout.folder / "summary").read_text()
    lines = ["m4.zip: refused: flags: drift is missing", "m4.zip: marked: time: 3 s"]
    assert checkout.issue(text, "\\n".join(lines), ends=1) == lines
    assert len(checkout.comments()) == 1


def test_the_marker_in_a_comment_of_another_person_is_left_alone(checkout):
    checkout.issue(body(zip=zips("a.zip")), "a.zip: accepted\n")
    other = checkout.comments()[0] | {"id": 0, "user": {"login": "jo"}}
    (checkout.folder / "comments.json").write_text(json.dumps([other]))
    checkout.script("comment.py", RESULT="b.zip: accepted")
    assert [shown(each)[0][0] for each in checkout.comments()] == ["a", "b"]


def test_a_failed_download_leaves_a_line_and_the_other_zips_are_checked(checkout):
    said = checkout.issue(body(zip=zips("missing.zip")), status=1)
    line = "missing.zip: not downloaded (exit status 22 of curl); edit the issue to try again"
    assert (said, checkout.called()) == ([line], [])
    text = body(zip=zips("missing.zip", "a.zip"))
    assert checkout.issue(text, "a.zip: accepted\n", status=1) == ["a.zip: accepted", line]


@pytest.mark.parametrize(
    ("says", "complains", "ends", "reason"),
    [
        ("", "Traceback:\\n  x\\nKeyError: 1\\n", 2, "(exit status 2): KeyError: 1"),
        # Python ends with 1 after a traceback, too, as the command does for a refused zip.
        ("a.zip: accepted\\n", "KeyError: 1\\n", 1, "(exit status 1): KeyError: 1"),
        ("", "", 0, "(exit status 0): no message"),
    ],
)
def test_a_check_that_crashes_leaves_a_line(checkout, says, complains, ends, reason):
    said = checkout.issue(body(zip=zips("a.zip")), says, complains, ends, status=1)
    assert said == [f"The check ended with an error {reason}"]


def test_a_job_that_ended_before_the_check_leaves_a_line(checkout):
    (checkout.folder / "event.json").write_text('{"issue": {"number": 7}}')
    checkout.script("comment.py", RESULT="")
    (comment,) = checkout.comments()
    assert shown(comment) == ["The check did not finish; its log says why."]


NO_ADDRESSES = [
    "https://example.org/user-attachments/files/1/a.zip",
    "http://github.com/user-attachments/files/1/a.zip",
    "https://github.com.example.org/user-attachments/files/1/a.zip",
    "https://example.org/?https://github.com/user-attachments/files/1/a.zip",
    "https://github.com/user-attachments/files/1/../../../x/y.zip",
    "https://github.com/user-attachments/files/1/a.zip?token=1",
    "https://github.com/user-attachments/files/1/a.zip.exe",
    "https://github.com/user-attachments/files/x/a.zip",
    "https://github.com/jo/pomology/archive/main.zip",
    "https://github.com/user-attachments/files/1/$(touch pwned).zip",
    "'; touch pwned; '`touch pwned`$(touch pwned)\n--output pwned a.zip",
]


def test_only_attachments_are_downloaded_and_the_text_of_an_issue_is_no_code(checkout):
    none = ["No zip is attached to this issue; edit it and drag the zip into its field."]
    assert checkout.issue(body()) == none and checkout.called() == []
    text = body(zip="\n".join(NO_ADDRESSES), remarks="$(touch pwned)")
    assert checkout.issue(text) == none
    assert len(checkout.comments()) == 1
    more = body(zip=zips("a.zip", "a.zip", "b-1_2.zip"), remarks=f"{ADDRESS}c.zip")
    checkout.issue(more, "a.zip: accepted\n")
    fetched = (checkout.folder / "fetched").read_text().split()
    assert fetched == [f"{ADDRESS}{name}.zip" for name in ("a", "b-1_2", "c")]
    many = body(zip=zips(*(f"{number}.zip" for number in range(7))))
    last = checkout.issue(many, "0.zip: accepted\n")[-1]
    assert last == "2 more zips were not checked; attach them to another issue"


def test_lines_are_shown_as_plain_text_and_are_no_commands_of_the_log(checkout):
    event = {"issue": {"number": 7, "body": body(zip=zips("a.zip"))}}
    says = "a.zip: refused: x: ```\\n```\\n@jo \\33[2J\\342\\200\\256![x](y)\\n::add-mask::x\\n"
    lines = checkout.check(event, says, ends=1)
    assert "| ::add-mask::x" in checkout.log and "\n::" not in checkout.log
    checkout.script("comment.py", RESULT=lines)
    expected = ["a.zip: refused: x: '''", "'''", "@jo  [2J ![x](y)", "::add-mask::x"]
    assert shown(checkout.comments()[0]) == expected
    checkout.script("comment.py", RESULT="`" * 99_999)
    assert len(checkout.comments()[0]["body"]) < 65_536


def test_of_a_pull_request_only_its_own_zips_are_checked(checkout):
    """Neither an old zip of the collection nor one that was added to main meanwhile."""
    identity = ("-c", "user.name=jo", "-c", "user.email=jo@x.org", "-c", "commit.gpgSign=false")

    def git(*arguments):
        command = ["git", *identity, *arguments]
        subprocess.run(command, cwd=checkout.folder, check=True, capture_output=True)

    def commit(*names):
        for name in names:
            path = checkout.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(name)
        git("add", *names)
        git("commit", "--message=x")

    git("init", "--initial-branch=main")
    commit("collection/old.zip", "collection/removed.zip")
    git("checkout", "-b", "change")
    commit("collection/$(touch pwned) 1.zip", "collection/folder/x.zip", "outputs/x.zip", "a.py")
    git("rm", "collection/removed.zip")
    commit("collection/README.md")
    git("checkout", "main")
    commit("collection/meanwhile.zip")
    git("merge", "--no-ff", "--no-edit", "change")
    event = {"pull_request": {}}
    refused = "x.zip: refused: copy: y"
    assert checkout.check(event, refused, ends=1, status=1) == refused
    assert checkout.called() == ["check-zip", "collection/$(touch pwned) 1.zip"]
    commit("a.md")  # no zip: what the code says of the collection is told, and refuses nothing
    assert checkout.check(event, refused, ends=1) == refused
    assert checkout.check(event, "", "KeyError\n", ends=1, status=1).endswith("KeyError")
    assert checkout.called()[-2:] == ["collect", "collect"]


def test_a_refused_run_of_the_mac_is_packed_and_the_job_says_why(checkout):
    said = {"SAYS": "outputs/m1.zip\\n", "COMPLAINS": "", "STATUS": "0"}
    assert "would accept" in checkout.script("pack_mac.sh", **said)
    assert checkout.called() == ["submit", "mac", "--yes"]
    said = {"SAYS": "", "COMPLAINS": "instrument check: mismatch\\n", "STATUS": "1"}
    log = checkout.script("pack_mac.sh", **said)
    summary = (checkout.folder / "summary").read_text()
    assert all("instrument check: mismatch" in text for text in (log, summary))
    assert (checkout.folder / "outputs" / "mac.zip").exists()


def test_the_form_its_workflow_and_the_page_agree_on_a_run(checkout, capsys):
    """The mock of curl gives a link to a zip of the collection, which is thus no copy of it."""
    zips_here = sorted((root() / "collection").glob("*.zip"))
    program = f'#!/bin/sh\nexec {sys.executable} -P -m pomology "$@"\n'
    (checkout.folder / ".venv/bin/pomology").write_text(program)
    text = body(zip=zips(zips_here[0].name))
    settings = {"ZIP": str(zips_here[0]), "PYTHONPATH": str(root() / "lib")}
    said = checkout.issue(text, **settings)
    assert said and not [line for line in said if ": refused: " in line]
    folder = checkout.folder / "collection"
    folder.mkdir()
    shutil.copy(zips_here[0], folder)
    assert main(["collect", f"--folder={folder}"]) == 0
    capsys.readouterr()
    pages = "".join(path.read_text(encoding="utf-8") for path in folder.rglob("*.html"))
    assert "AMD EPYC" in pages
