"""Which commands a text runs, for approval rules: what cannot be told is opaque, whatever it looks like."""

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
        ("git $x", ["git …"]),
        ("", []),
        ("# nothing", []),
    ],
)
def test_the_commands_of_a_text(text: str, commands: list[str]) -> None:
    assert [" ".join(command.words) + " …" * command.open for command in read(text)] == commands


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
        ("if a; then sudo git push; fi", "sudo git push"),
        ("bash -c 'git push'", "git push"),
        ("eval 'bash -c \"git push\"'", "git push"),
        ("a $(git push)", "git push"),
        ("A=1 git push", "git push"),
        ("git push <<E\nE", "git push"),
        ("linux32 bash -c 'git push'", "git push"),
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
