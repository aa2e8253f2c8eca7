"""What is read from a repository's files, compared with what git says."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.adapters.workspace.local import SHORT, git_state, repository_root
from actors.ports import GitState

if TYPE_CHECKING:
    from pathlib import Path

ENVIRONMENT = {
    "PATH": os.environ["PATH"],
    "HOME": "/nowhere",
    "GIT_CONFIG_NOSYSTEM": "1",
    **{f"GIT_{who}_{what}": "tester@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
}
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def git(folder: Path, *words: str) -> str:
    run = subprocess.run(["git", *words], cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, check=True)
    return run.stdout.strip()


def state(root: Path, *protected: str) -> GitState:
    return git_state(str(root), lambda real: "no" if real in protected else "")


def as_git_says(root: Path) -> GitState:
    branch = git(root, "rev-parse", "--abbrev-ref", "HEAD")
    commit = git(root, "rev-parse", "HEAD")[:SHORT]
    return GitState(git(root, "rev-parse", "--show-toplevel"), "" if branch == "HEAD" else branch, commit)


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A repository with one commit, made by git."""
    folder = tmp_path / "made"
    folder.mkdir()
    git(folder, "init", "--quiet", "--initial-branch", "trunk")
    git(folder, "commit", "--quiet", "--allow-empty", "--message", "first")
    return folder


@pytest.fixture
def fake(tmp_path: Path) -> Path:
    """The least that counts as a repository, written by hand."""
    folder = tmp_path / "fake"
    (folder / ".git" / "refs" / "heads").mkdir(parents=True)
    (folder / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    (folder / ".git" / "refs" / "heads" / "main").write_text(COMMIT + "\n")
    return folder


def test_a_branch_and_its_commit(made: Path) -> None:
    assert state(made) == as_git_says(made)
    git(made, "switch", "--quiet", "--create", "topic/deep/name")
    git(made, "commit", "--quiet", "--allow-empty", "--message", "second")
    assert state(made) == as_git_says(made)
    assert state(made).branch == "topic/deep/name"


def test_packed_refs(made: Path) -> None:
    for number in range(20):
        git(made, "branch", f"trunk{number}")
    git(made, "commit", "--quiet", "--allow-empty", "--message", "second")
    git(made, "pack-refs", "--all")
    assert not (made / ".git" / "refs" / "heads" / "trunk").exists()
    assert state(made) == as_git_says(made)


def test_no_branch_is_checked_out(made: Path) -> None:
    git(made, "checkout", "--quiet", "--detach")
    assert state(made) == as_git_says(made)
    assert state(made).branch == ""


def test_before_the_first_commit(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet", "--initial-branch", "new")
    assert state(tmp_path) == GitState(str(tmp_path), "new", "")


def test_a_linked_worktree_has_a_branch_of_its_own(made: Path, tmp_path: Path) -> None:
    linked = tmp_path / "linked"
    git(made, "worktree", "add", "--quiet", "-b", "side", str(linked))
    git(linked, "commit", "--quiet", "--allow-empty", "--message", "elsewhere")
    for packed in (False, True):
        if packed:
            git(made, "pack-refs", "--all")
        assert state(linked) == as_git_says(linked)
        assert state(linked).branch == "side"
    assert repository_root(str(linked)) == str(linked)


def test_a_submodule_is_a_repository_of_its_own(made: Path, tmp_path: Path) -> None:
    outer = tmp_path / "outer"
    outer.mkdir()
    git(outer, "init", "--quiet")
    git(outer, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(made), "inner")
    (outer / "inner" / "src").mkdir()
    assert repository_root(str(outer / "inner" / "src")) == str(outer / "inner")
    assert state(outer / "inner") == as_git_says(outer / "inner")


def test_git_is_never_run(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A repository's settings may name programs that git would run."""
    told = as_git_says(made)
    git(made, "config", "core.fsmonitor", f"touch {made}/ran")

    def refuse(*arguments: object, **more: object) -> object:
        raise AssertionError("a program was started")

    for name in ("fork", "posix_spawn", "posix_spawnp", "execve"):
        monkeypatch.setattr(os, name, refuse)
    monkeypatch.setattr(subprocess, "Popen", refuse)
    assert state(made) == told


def test_the_root_is_the_nearest_one_above(fake: Path) -> None:
    below = fake / "a" / "b"
    below.mkdir(parents=True)
    assert repository_root(str(below)) == repository_root(str(fake)) == str(fake)
    (fake / "a" / ".git").mkdir()
    assert repository_root(str(below)) == str(fake), "an empty .git is no repository"
    (fake / "a" / ".git" / "HEAD").write_text("ref: refs/heads/x\n")
    assert repository_root(str(below)) == str(fake / "a")


def test_a_repository_that_another_user_put_above_is_not_believed(fake: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a directory away")
    below = fake / "a"
    below.mkdir()
    os.chown(fake / ".git", 1234, 1234)
    assert repository_root(str(below)) == ""
    os.chown(below, 1234, 1234)
    assert repository_root(str(below)) == str(fake), "whoever owns the working directory owns the repository"


@pytest.mark.parametrize(
    "head",
    [
        "",
        "ref: refs/heads/\n",
        "ref: refs/heads/../../../../etc/passwd\n",
        "ref: refs/heads//etc/passwd\n",
        "ref: refs/heads/a/./b\n",
        "ref: refs/heads/.invalid\n",
        "ref: refs/heads/two\nlines\n",
        "ref: refs/heads/\x1b[31mred\n",
        "ref: refs/tags/v1\n",
        "root:x:0:0:root:/root:/bin/bash\n",
        COMMIT[:-1],
        "x" * 100_000,
    ],
)
def test_a_head_that_git_would_not_write_tells_nothing(fake: Path, head: str) -> None:
    (fake / ".git" / "HEAD").write_text(head)
    assert state(fake) == GitState(str(fake))


@given(st.binary(max_size=60))
def test_no_head_makes_it_fail(tmp_path_factory: pytest.TempPathFactory, head: bytes) -> None:
    folder = tmp_path_factory.getbasetemp() / "heads"
    (folder / ".git").mkdir(parents=True, exist_ok=True)
    (folder / ".git" / "HEAD").write_bytes(b"ref: refs/heads/" + head)
    told = state(folder)
    assert told.commit == ""
    assert "\n" not in told.branch


def test_links_and_what_never_ends_are_not_read(fake: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text(COMMIT + "\n")
    main = fake / ".git" / "refs" / "heads" / "main"
    main.unlink()
    main.symlink_to(elsewhere)
    assert state(fake) == GitState(str(fake), "main", "")
    main.unlink()
    os.mkfifo(main)
    os.mkfifo(fake / ".git" / "packed-refs")
    assert state(fake) == GitState(str(fake), "main", "")
    (fake / ".git" / "HEAD").unlink()
    (fake / ".git" / "HEAD").symlink_to("/dev/zero")
    assert state(fake) == GitState(str(fake))


def test_what_belongs_to_the_server_is_not_read(fake: Path) -> None:
    main = str(fake / ".git" / "refs" / "heads" / "main")
    assert state(fake).commit == COMMIT[:SHORT]
    assert state(fake, main) == GitState(str(fake), "main", "")


@pytest.mark.parametrize("content", ["", "gitdir: ", "gitdir: /nowhere", "gitdir: \0", "gitdir: .git", "x" * 9_000])
def test_a_git_file_that_leads_nowhere_tells_nothing(tmp_path: Path, content: str) -> None:
    (tmp_path / ".git").write_text(content)
    assert state(tmp_path) == GitState(str(tmp_path))


def test_a_symlink_of_old_gits_as_head(fake: Path) -> None:
    (fake / ".git" / "HEAD").unlink()
    (fake / ".git" / "HEAD").symlink_to("refs/heads/main")
    assert state(fake) == GitState(str(fake), "", COMMIT[:SHORT])
