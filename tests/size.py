"""Count the code of every folder and hold it to its budget: `python -m tests.size [--check | --lower]`.

A line counts if it holds code: docstrings, comments and blank lines are free, and generated code is left out. The
budget, `tests/size.json`, has [code lines, modules] of each folder. `--lower` writes what is smaller than before; a
budget is raised by hand only, in the commit of the feature that needs the room.
"""

import argparse
import ast
import io
import json
import subprocess
import sys
import tokenize
from collections import Counter
from operator import gt
from pathlib import Path

ROOT = Path(__file__).parents[1]
BUDGET = ROOT / "tests/size.json"
PRODUCT = ("actors", "server", "clients")
GENERATED = ("_pb2", "clients/bedrock/_sync/", "clients/bedrock/_shared/values.py", "clients/bedrock/types.py")
LAYOUT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def code_lines(source: str) -> int:
    """Count the lines of a module that hold code."""
    documentation: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            documentation.update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in LAYOUT:
            code.update(range(token.start[0], token.end[0] + 1))
    return len(code - documentation)


def folder_of(file: str) -> str:
    """Name the folder whose budget a module counts against: two levels deep in the product, one in the tests."""
    parts = Path(file).parts[:-1]
    deep = parts[:2] in {("actors", "adapters"), ("clients", "bedrock")}
    return "/".join(parts[: 3 if deep else 2]) if parts[0] in PRODUCT else parts[0]


def measured() -> dict[str, list[int]]:
    """Return [code lines, modules] of each folder of the files that git knows, and of the whole product."""
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True)
    lines, modules = Counter[str](), Counter[str]()
    for file in listed.stdout.split():
        path = ROOT / file
        if file.split("/")[0] in {*PRODUCT, "tests"} and path.exists() and not any(part in file for part in GENERATED):
            count = code_lines(path.read_text(encoding="utf-8"))
            for folder in (folder_of(file), *(["product"] if not file.startswith("tests/") else [])):
                lines[folder] += count
                modules[folder] += 1
    return {folder: [lines[folder], modules[folder]] for folder in sorted(modules)}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="make size")
    parser.add_argument("--check", action="store_true", help="fail where a folder is above its budget")
    parser.add_argument("--lower", action="store_true", help="lower the budget to what is smaller now")
    options = parser.parse_args(arguments)
    now, budget = measured(), json.loads(BUDGET.read_text(encoding="utf-8"))
    if options.lower:
        lowered = {folder: [*map(min, size, budget.get(folder, size))] for folder, size in now.items()}
        rows = ",\n".join(f"  {json.dumps(folder)}: {json.dumps(size)}" for folder, size in lowered.items())
        BUDGET.write_text(f"{{\n{rows}\n}}\n", encoding="utf-8")
        return 0
    above = [folder for folder, size in now.items() if any(map(gt, size, budget.get(folder, [0, 0])))]
    if not options.check:
        print(f"{'folder':32}{'code lines':>12}{'modules':>9}{'budget':>18}")
    for folder in above if options.check else now:
        lines, modules = now[folder]
        print(f"{folder:32}{lines:12,}{modules:9}{budget.get(folder, 'none')!s:>18}{' above' * (folder in above)}")
    if above and options.check:
        print("larger than tests/size.json allows: remove code, or raise that line with the feature that needs it")
    return 1 if above and options.check else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
