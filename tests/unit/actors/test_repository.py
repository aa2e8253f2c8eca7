"""Reading and creating conversations: the repository, the list of them, where they are placed."""

import os
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from actors.adapters.workspace.local import SHORT, git_state, repository_root
from actors.core.errors import Reason, Rejected
from actors.ports import ConversationRecord, GitState
from actors.ports.cluster import EVERYTHING, Node, directories_above, has, label_of, node_with, workspace_of
from actors.publishing import conversation_list as list_feed
from actors.publishing.conversation_list import ListFeed, ListWatch
from actors.publishing.hub import EventHub
from tests.support.commit_builder import record_of

# What is read from a repository's files, compared with what git says.


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


# The changes of the list of conversations: the latest of each, in order, for as long as somebody has not seen it.


class Reader:
    """A watcher that counts how often it is woken."""

    def __init__(self, feed: ListFeed) -> None:
        self.woken = 0
        self.watch: ListWatch = feed.attach(self._wake)

    def _wake(self) -> None:
        self.woken += 1

    def ids(self) -> list[str]:
        return [listed.id for listed in self.watch.read()]


def at(step: int, conversation_id: str = "c1", **fields: Any) -> ConversationRecord:
    return record_of(conversation_id, step=step, **fields)


def test_nothing_is_kept_without_watchers() -> None:
    feed = ListFeed()
    assert not feed.watched
    feed.changed(at(1))
    reader = Reader(feed)
    assert feed.watched
    assert reader.ids() == []
    feed.changed(at(2))
    reader.watch.close()
    reader.watch.close()
    assert not feed.watched
    assert feed._latest == {}


def test_of_each_conversation_the_latest_in_the_order_of_the_changes() -> None:
    feed = ListFeed()
    reader = Reader(feed)
    for step, name in enumerate("abacb"):
        feed.changed(at(step, name))
    assert [(each.id, each.record.step) for each in reader.watch.read()] == [("a", 2), ("c", 3), ("b", 4)]
    assert reader.ids() == []


def test_a_watcher_is_woken_once_until_it_looks() -> None:
    feed = ListFeed()
    reader = Reader(feed)
    for step in range(5):
        feed.changed(at(step))
    assert reader.woken == 1
    reader.watch.read()
    feed.changed(at(9))
    assert reader.woken == 2


def test_one_that_cannot_be_woken_does_not_disturb_the_others(caplog: Any) -> None:
    feed = ListFeed()

    def broken() -> None:
        raise ZeroDivisionError

    feed.attach(broken)
    reader = Reader(feed)
    feed.changed(at(1))
    assert reader.woken == 1
    assert "could not be notified" in caplog.text


def test_what_was_taken_and_has_changed_since_says_so() -> None:
    feed = ListFeed()
    reader = Reader(feed)
    feed.changed(at(1))
    (taken,) = reader.watch.read()
    assert not taken.outdated
    feed.changed(at(2))
    assert taken.outdated


def test_a_deletion_tells_whose_it_was_and_whether_it_was_a_sub_agent() -> None:
    feed = ListFeed()
    reader = Reader(feed)
    feed.deleted("child", at(3, "parent"))
    feed.deleted("parent", at(3, "parent"))
    feed.changed(at(1, "other", user_initiated=False))
    seen = reader.watch.read()
    assert [(each.id, each.deleted, each.sub_agent) for each in seen] == [
        ("child", True, True), ("parent", True, False), ("other", False, True),
    ]  # fmt: skip
    assert {each.record.principal for each in seen} == {"local"}


def test_what_all_watchers_have_read_is_dropped() -> None:
    feed = ListFeed()
    quick, slow = Reader(feed), Reader(feed)
    for number in range(10 * list_feed.SPARE):
        feed.changed(at(1, f"c{number}"))
        quick.watch.read()
    assert len(slow.ids()) == 10 * list_feed.SPARE, "a slow one misses nothing"
    for number in range(10 * list_feed.SPARE):
        feed.changed(at(2, f"d{number}"))
        quick.watch.read()
        slow.watch.read()
    assert len(feed._latest) <= 11 * list_feed.SPARE
    for _ in range(10 * list_feed.SPARE):
        feed.changed(at(2, "d1"))
        quick.watch.read()
        slow.watch.read()
    feed.changed(at(3, "new"))
    assert quick.ids() == slow.ids() == ["new"]


def test_every_watcher_ends_with_the_truth_whenever_it_looks() -> None:
    chance = random.Random(7)
    feed = ListFeed()
    readers = [Reader(feed) for _ in range(3)]
    views: list[dict[str, int]] = [{} for _ in readers]
    truth: dict[str, int] = {}
    for step in range(5_000):
        name = f"c{chance.randrange(40)}"
        if chance.random() < 0.1:
            truth.pop(name, None)
            feed.deleted(name, at(step, name))
        else:
            truth[name] = step
            feed.changed(at(step, name))
        for reader, view in zip(readers, views, strict=True):
            if chance.random() < 0.01:
                look(reader, view)
    for reader, view in zip(readers, views, strict=True):
        look(reader, view)
        assert view == truth


def look(reader: Reader, view: dict[str, int]) -> None:
    for listed in reader.watch.read():
        if listed.deleted:
            view.pop(listed.id, None)
        else:
            assert listed.record.step >= view.get(listed.id, 0)
            view[listed.id] = listed.record.step


def test_the_hub_tells_the_list_only_while_it_is_watched(monkeypatch: Any) -> None:
    hub = EventHub()
    monkeypatch.setattr(hub.conversation_list, "_put", lambda *_, **__: 1 / 0)
    hub.created(at(1))
    hub.deleted("c1", at(1))
    hub.deleted("c1")
    monkeypatch.undo()
    reader = Reader(hub.conversation_list)
    hub.created(at(1))
    hub.deleted("c1")
    hub.deleted("c2", replace(at(1), id="c2"))
    assert reader.ids() == ["c1", "c2"]


# Which nodes a conversation can be on: the rules of docs/cluster.md.


A, B = "/mnt/a", "/mnt/a/b"


def node(number: int, *labels: str, active: int = 0, draining: bool = False, address: str = "node:1") -> Node:
    return Node(number, address=address, labels=frozenset(labels), draining=draining, active=active)


@pytest.mark.parametrize(
    ("path", "workspace"),
    [
        ("/mnt/a", A),
        ("/mnt/a/", A),
        ("//mnt/./a/c", A),
        ("/mnt/a/b/c", B),
        ("/mnt/a/c/../b", B),
        ("/mnt/a/b/../c", A),
        ("/mnt/a/../b", ""),
        ("/mnt/ab", ""),
        ("/mnt", ""),
        ("/", ""),
        ("mnt/a", ""),
        ("", ""),
    ],
)
def test_a_directory_is_in_the_innermost_workspace(path: str, workspace: str) -> None:
    assert workspace_of(path, (A, B)) == workspace_of(path, (B, A)) == workspace
    assert workspace_of(path, ()) == ""


def test_directories_go_up_to_the_root() -> None:
    assert directories_above("/mnt/a/") == ("/mnt/a", "/mnt", "/")


def test_a_node_has_what_it_names_and_what_is_in_no_workspace() -> None:
    assert has(node(1, A), A)
    assert not has(node(1, A), B), "an inner one has to be named, too"
    assert has(node(1), "")
    assert not has(node(1), A)
    assert has(node(1, EVERYTHING), A)


def test_the_least_busy_node_that_has_a_workspace_gets_its_next_conversation() -> None:
    nodes = [node(1, active=0), node(2, A, active=5), node(3, A, B, active=4), node(4, A, active=4), node(5, B)]
    assert node_with(A, nodes).incarnation == 3
    assert node_with(A, reversed(nodes)).incarnation == 3


def test_a_workspace_of_no_node_that_goes_on_is_offline() -> None:
    with pytest.raises(Rejected, match=r"workspace /mnt/a: start one that lists it in cluster\.workspaces") as refused:
        node_with(A, [node(1), node(2, B), node(3, A, draining=True), node(4, A, address="")])
    assert refused.value.reason is Reason.WORKSPACE_OFFLINE


def test_a_new_conversation_belongs_to_a_workspace_of_its_node_or_to_none() -> None:
    me, other = node(1, A), node(2, A, B)
    assert label_of("/mnt/a/c", me, (me, other)) == A
    assert label_of("/srv", me, (me, other)) == ""
    assert label_of("/mnt/a/b", other, (me, other)) == B
    with pytest.raises(Rejected, match="into workspace /mnt/a/b of other nodes") as refused:
        label_of("/mnt/a/b/c", me, (me, other))
    assert refused.value.reason is Reason.WORKING_DIRECTORY_INVALID
