"""Which commands a text runs, for approval rules: what cannot be told is opaque, whatever it looks like."""

from __future__ import annotations

import time

import pytest

from actors.adapters.tools.bash.shell_reading import MAX_BYTES, OpaqueTextError, find, read


@pytest.mark.parametrize(
    ("text", "commands"),
    [
        ("git push", ["git push"]),
        ("g\\it 'pu'\"sh\"", ["git push"]),
        ("gi\\\nt push", ["git push"]),
        ("git push # rm -r /", ["git push"]),
        ("git push#x", ["git push#x"]),
        ("a | b |& c && d || e; f & g\nh", list("abcdefgh")),
        ("a |\n\n b", ["a", "b"]),
        ("a 2>&1 >/dev/null", ["a"]),
        ("echo 'a;b' \"c|d\" e\\;f", ["echo a;b c|d e;f"]),
        ("echo \"a\\$b\\`\" '$(rm)'", ["echo a$b` $(rm)"]),
        ("''git push", ["git push"]),
        ("/usr/bin/git push", ["/usr/bin/git push"]),
        ("cargo $x test", ["cargo …"]),
        ('cargo "$x"', ["cargo …"]),
        ("ls *.py", ["ls …"]),
        ("ls ~/x", ["ls …"]),
        ("ls {a,b}", ["ls …"]),
        ("ls é", ["ls …"]),
        ("bash x", ["bash x (runs others)"]),
        ("python3.12 x", ["python3.12 x (runs others)"]),
        ("/usr/bin/env git", ["/usr/bin/env git (runs others)"]),
        ("git -c a=b push", ["git -c a=b push (runs others)"]),
        ("git rebase -x rm", ["git rebase -x rm (runs others)"]),
        ("uv run rm", ["uv run rm (runs others)"]),
        ("npm exec rm", ["npm exec rm (runs others)"]),
        ("npm run test", ["npm run test"]),
        ("docker -H x run y", ["docker -H x run y (runs others)"]),
        ("git $x", ["git (runs others) …"]),
        ("find . -delete", ["find . -delete (runs others)"]),
        ("sort --compress-program=x a", ["sort --compress-program=x a (runs others)"]),
        ("rg --pre ./x a", ["rg --pre ./x a (runs others)"]),
        ("rg a *", ["rg a (runs others) …"]),
        ("rg a b", ["rg a b"]),
        ("git grep -nOx a", ["git grep -nOx a (runs others)"]),
        ("git grep --open-files=x a", ["git grep --open-files=x a (runs others)"]),
        ("git grep -n a", ["git grep -n a"]),
        ("git clone -qcx=y a", ["git clone -qcx=y a (runs others)"]),
        ("git fetch --upload-pack=x a", ["git fetch --upload-pack=x a (runs others)"]),
        ("git push -u origin a", ["git push -u origin a"]),
        ("git push --rec=x a", ["git push --rec=x a (runs others)"]),
        ("git commit -m Open", ["git commit -m Open"]),
        ("wget -qe x a", ["wget -qe x a (runs others)"]),
        ("go test -exec x", ["go test -exec x (runs others)"]),
        ("go test ./a", ["go test ./a"]),
        ("command git push", ["command git push (runs others)"]),
        ("exec git", ["exec git (runs others)"]),
        ("printf -v a x", ["printf -v a x (runs others)"]),
        ("test -v 'a[$(rm)]'", ["test -v a[$(rm)] (runs others)"]),
        ("sudo x", ["sudo x (runs others)"]),
        ("xargs rm", ["xargs rm (runs others)"]),
        ("", []),
        ("# nothing", []),
    ],
)
def test_the_commands_of_a_text(text: str, commands: list[str]) -> None:
    shown = [
        " ".join(command.words) + " (runs others)" * command.runs_others + " …" * command.open for command in read(text)
    ]
    assert shown == commands


@pytest.mark.parametrize(
    "text",
    [
        *("$x", "$(x)", "`x`", "a $(x)", "a `x`", 'a "$(x)"', "a $((1))", "a <(x)", "a >(x)", "a ${x:-y}", "a ${x[1]}"),
        *(
            "PATH=. git",
            "A=1",
            "a=(b)",
            "a+=b c",
            "git >f",
            "git >>f",
            "git <f",
            "git <<E\nE",
            "git <<<x",
            ">f",
            "2>f git",
        ),
        *("(a)", "{ a; }", "a() { b; }", "function a { b; }", "if a; then b; fi", "for a in b; do c; done", "time a"),
        *("case a in b) c;; esac", "while a; do b; done", "until a; do b; done", "! a", "[[ a ]]", "((1))", "coproc a"),
        *(
            "a $'\\x41'",
            'a $"b"',
            "$'a'",
            "a 'b",
            'a "b',
            "a \\",
            "a && ",
            "a |",
            "&& a",
            "a ;; b",
            "a & & b",
            "a |\\\n| b",
        ),
        *(
            "g?t push",
            "{git,push}",
            "~/x",
            "é",
            "a\rb",
            "a\x00b",
            "a\x0bb",
            "a \x1b",
            "select a in b; do c; done",
            "a (b)",
        ),
        *("a &> f", "a >| f", "a <> f", "a 3<&0-", "a {b}>f", "a $-", "a $@", "a $$", "a ${!x}", "[ a ]", "*", "a &>f"),
        "a " * MAX_BYTES,
    ],
)
def test_text_that_cannot_be_told_is_opaque(text: str) -> None:
    with pytest.raises(OpaqueTextError):
        read(text)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("(git push)", "git push"),
        ("if a; then sudo git push; fi", "git push"),
        ("bash -c 'git push'", "git push"),
        ("eval 'bash -c \"git push\"'", "git push"),
        ("a $(git push)", "git push"),
        ("A=1 git push", "git push"),
        ("git push <<E\nE", "git push"),
        ("env -u x nice -n 3 git push", "git push"),
    ],
)
def test_commands_are_found_in_opaque_text_and_in_what_others_run(text: str, found: str) -> None:
    assert found in [" ".join(command.words) for command in find(text)]


@pytest.mark.parametrize(
    "piece", ["$(", "(", "{ ", "'", '"', "<<E\n", "a;", "`", "\\", "${x:-", "if a; then ", "$((", "a|"]
)
def test_long_and_deep_text_takes_bounded_time(piece: str) -> None:
    text = piece * (100_000 // len(piece))
    before = time.thread_time()
    with pytest.raises(OpaqueTextError):
        read(text)
    find(text)
    assert time.thread_time() - before < 10
