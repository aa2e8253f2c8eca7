"""No module of the client imports itself in a circle, not even for its types."""

from __future__ import annotations

from graphlib import TopologicalSorter

import grimp


def test_the_modules_of_the_client_import_each_other_in_one_direction() -> None:
    graph = grimp.build_graph("bedrock", exclude_type_checking_imports=False)
    modules = {module for module in graph.modules if not module.startswith("bedrock.v1")}
    imports = {module: graph.find_modules_directly_imported_by(module) & modules for module in modules}
    assert "bedrock.states" in imports["bedrock.errors"], "imports for types are seen"
    TopologicalSorter(imports).prepare()  # raises CycleError, which names the circle
