"""Write the Python stubs of the contract into a folder: `python -m tests.generate.stubs .`.

The contract's rules are options of protovalidate. The stubs keep them, but do not import the file that defines these
options: a client then needs nothing of protovalidate, and who has it can validate their messages all the same. The
server, which reads the rules, has the stub of that file.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from google.protobuf.descriptor_pb2 import FileDescriptorSet

from tests.generate.contract import PROTOS, contract_files

ONLY_OPTIONS = "buf/validate/"
"""Files that are imported for their options alone, and are in no package that the client could depend on."""
RULES = f"{ONLY_OPTIONS}validate.proto"
SECONDS = 60


def without_rules_imports(files: FileDescriptorSet) -> FileDescriptorSet:
    """The same files without those that define the rules; the rules themselves stay, as options without a name."""
    kept = FileDescriptorSet(file=[file for file in files.file if not file.name.startswith(ONLY_OPTIONS)])
    for file in kept.file:
        imports = [each for each in file.dependency if not each.startswith(ONLY_OPTIONS)]
        del file.dependency[:]
        file.dependency.extend(imports)
    return kept


def rules_alone(files: FileDescriptorSet) -> FileDescriptorSet:
    """The same files; the one with the rules says only what rules there are, and not in CEL what each means."""
    reduced = FileDescriptorSet.FromString(files.SerializeToString())
    for file in reduced.file:
        file.ClearField("source_code_info")
        for message in file.message_type if file.name == RULES else ():
            for field in message.field:
                field.ClearField("options")
    return reduced


def write(root: Path) -> None:
    """Write the stubs of messages and services, and their types, beneath the root of a checkout."""
    protoc = [sys.executable, "-m", "grpc_tools.protoc"]
    names, target = contract_files(), root / "clients"
    with tempfile.TemporaryDirectory() as folder:
        described = Path(folder) / "contract"
        with_all = ["--include_imports", "--include_source_info", f"--descriptor_set_out={described}"]
        subprocess.run([*protoc, f"-I{PROTOS}", *with_all, *names], check=True, timeout=SECONDS)
        files = FileDescriptorSet.FromString(described.read_bytes())
        described.write_bytes(without_rules_imports(files).SerializeToString())
        outputs = [f"--{kind}_out={target}" for kind in ("python", "grpc_python")]
        outputs += [f"--{kind}_out=quiet:{target}" for kind in ("mypy", "mypy_grpc")]
        subprocess.run([*protoc, f"--descriptor_set_in={described}", *outputs, *names], check=True, timeout=SECONDS)
        described.write_bytes(rules_alone(files).SerializeToString())
        outputs = [f"--python_out={folder}", f"--mypy_out=quiet:{folder}"]
        subprocess.run([*protoc, f"--descriptor_set_in={described}", *outputs, RULES], check=True, timeout=SECONDS)
        for stub in (Path(folder) / ONLY_OPTIONS).iterdir():
            shutil.copyfile(stub, root / "server" / "contract" / stub.name)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
