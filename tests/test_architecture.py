"""The layout's promises, counted: imports point one way, files stay short, nothing is hidden."""

from __future__ import annotations

import ast
import re
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for package in ("launch", "parallel")
    for path in sorted((ROOT / package).rglob("*.py"))
}
TREES = {module: ast.parse(path.read_text()) for module, path in SOURCES.items()}

READS_ENVIRONMENT = {
    "parallel.world": "who we are, where rank 0 is, which devices and interfaces are visible",
}
READS_FOREIGN = {"launch.weights.archive": "files of torch.save that users name, tensors alone"}
PRINTS = {"launch.listeners.progress": "what a person sees", "launch.listeners.console": "same"}
RESOLVED_LATE = {
    "launch.fault": "only a run that asks for a fault has any business with it",
    "parallel.sharded.engine": "0.5-0.9 s of torch's, which only training with optimizers needs",
    "torch.utils.tensorboard": "0.3-0.9 s, on rank 0 only",
    "torch.utils.tensorboard.summary": "the same",
    "tensorboard.compat.proto.event_pb2": "the same",
    "tensorboard.compat.proto.summary_pb2": "the same",
    "tensorboard.summary.writer.record_writer": "the same",
    "matplotlib.backends.backend_agg": "a second, for the picture of a finished comparison alone",
    "matplotlib.figure": "the same",
    "pydoc_data.topics": "half a megabyte of text, for the `text` task's default alone",
}


def imports(module: str) -> set[str]:
    package = module if SOURCES[module].name == "__init__.py" else module.rpartition(".")[0]
    found = set()
    for node in ast.walk(TREES[module]):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{module}: imports are absolute, not relative to {package}"
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= names if names <= SOURCES.keys() else {*names, node.module or ""}
    return (found & SOURCES.keys()) - {module}


def functions(module: str):
    for node in ast.walk(TREES[module]):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def test_setup_lists_every_package():
    text = (ROOT / "setup.cfg").read_text()
    listed = text.partition("packages =\n")[2].partition("install_requires")[0].split()
    found = {m for m, path in SOURCES.items() if path.name == "__init__.py"}
    assert set(listed) == found


def test_parallel_imports_nothing_from_launch():
    wrong = [(m, i) for m in SOURCES if m.startswith("parallel") for i in imports(m)]
    assert [pair for pair in wrong if pair[1].startswith("launch")] == []


def test_parallel_imports_torch_only():
    allowed = {"torch", "parallel"}
    for module in (m for m in SOURCES if m.startswith("parallel")):
        for node in ast.walk(TREES[module]):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            roots = {name.partition(".")[0] for name in names}
            assert roots <= allowed | sys.stdlib_module_names, (module, roots)


def test_no_import_cycles():
    order = TopologicalSorter({module: imports(module) for module in SOURCES}).static_order()
    assert set(order) == SOURCES.keys()  # CycleError where there is none


@pytest.mark.parametrize("module", SOURCES)
def test_files_are_short(module):
    assert len(SOURCES[module].read_text().splitlines()) <= 250


@pytest.mark.parametrize("module", SOURCES)
def test_functions_are_short(module):
    for node in functions(module):
        size = (node.end_lineno or 0) - node.lineno + 1
        text = ast.get_docstring(node, clean=False)
        assert size - (text.count("\n") + 1 if text else 0) <= 40, node.name


@pytest.mark.parametrize("module", SOURCES)
def test_files_open_with_a_sentence(module):
    text = ast.get_docstring(TREES[module])
    assert text
    assert re.match(r".+[.:]$", text.splitlines()[0]), text.splitlines()[0]


def test_only_listed_files_touch_the_environment():
    words = ("os.environ", "os.getenv", "os.putenv")
    found = {m for m, p in SOURCES.items() if any(word in p.read_text() for word in words)}
    assert found == READS_ENVIRONMENT.keys()


def test_only_listeners_print():
    found = {
        module
        for module in SOURCES
        for node in ast.walk(TREES[module])
        if isinstance(node, ast.Call)
        if isinstance(node.func, ast.Name) and node.func.id == "print"
    }
    assert found <= PRINTS.keys()


def test_no_assert_and_no_global():
    found = [
        (module, node.lineno)
        for module in SOURCES
        for node in ast.walk(TREES[module])
        if isinstance(node, ast.Assert | ast.Global)
    ]
    assert found == []


def test_the_loop_knows_no_strategy_rank_or_device():
    words = re.compile(r"\b(ddp|single|pipeline|rank|cuda|cpu|device|is_main|print)\b")
    code = "\n".join(
        line for line in SOURCES["launch.loop"].read_text().splitlines() if '"""' not in line
    )
    assert words.findall(code) == []


def test_nothing_unpickles():
    words = re.compile(r"\b(pickle\.loads?|torch\.load|joblib|allow_pickle=True|yaml\.load)\b")
    found = {m for m, p in SOURCES.items() if words.search(p.read_text())}
    assert found == READS_FOREIGN.keys()


def test_C21_torch_reads_tensors_alone_and_to_the_cpu():
    calls = [
        {word.arg: ast.literal_eval(word.value) for word in node.keywords if word.arg != "mmap"}
        for module in READS_FOREIGN
        for node in ast.walk(TREES[module])
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.load"
    ]
    assert calls == [{"map_location": "cpu", "weights_only": True}]


def test_imports_inside_functions_are_listed():
    late = set()
    for module in SOURCES:
        for function in functions(module):
            for node in ast.walk(function):
                if isinstance(node, ast.Import):
                    late |= {alias.name for alias in node.names}
                elif isinstance(node, ast.ImportFrom):
                    late.add(node.module or "")
    assert late <= RESOLVED_LATE.keys()


def test_silenced_rules_have_a_reason():
    bare = re.compile(r"#\s*(noqa(: ?[A-Z]+\d+)?|type: ignore(\[[\w-]+\])?)\s*$")
    found = [
        (module, number)
        for module, path in SOURCES.items()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if bare.search(line)
    ]
    assert found == []
