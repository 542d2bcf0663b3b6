"""Run notebooks from the top and write their outputs: python notebooks/execute.py [NOTEBOOK ...]; all of this folder by default.

Needs the extra `notebooks`. The kernel is one of the interpreter that runs this file; kernels registered on the machine are not
looked at.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

import nbformat
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

HERE = Path(__file__).resolve().parent
KERNEL = "this-interpreter"
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def executed(notebook: nbformat.NotebookNode, folder: Path, timeout: int = 120) -> nbformat.NotebookNode:
    """The notebook with its outputs, and no traces of when and where. All files of the kernel lie in `folder`, which is empty.

    Its working directory is folder/work. `timeout`: seconds for one cell.

    Raises:
      CellExecutionError: a cell failed; what follows it was not run.
    """
    (folder / "kernels" / KERNEL).mkdir(parents=True)
    (folder / "work").mkdir()
    command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    spec = {"argv": command, "display_name": KERNEL, "language": "python"}
    (folder / "kernels" / KERNEL / "kernel.json").write_text(json.dumps(spec))
    manager = AsyncKernelManager(
        kernel_name=KERNEL,
        kernel_spec_manager=KernelSpecManager(kernel_dirs=[str(folder / "kernels")], ensure_native_kernel=False),
        connection_file=str(folder / "connection.json"),
        transport="ipc",  # sockets are files of `folder`: no port is opened
    )
    place = {"metadata": {"path": str(folder / "work")}}
    client = NotebookClient(
        notebook,
        km=manager,
        timeout=timeout,
        record_timing=False,
        coalesce_streams=True,  # one text a cell, whenever the kernel flushed
        resources=place,
    )
    environment = {**os.environ, "IPYTHONDIR": str(folder / "ipython"), "OMP_NUM_THREADS": "1"}
    done = client.execute(env=environment, cleanup_kc=True)
    done.metadata = nbformat.from_dict(METADATA)
    return done


def main(names: list[str]) -> None:
    for path in [Path(name) for name in names] or sorted(HERE.glob("*.ipynb")):
        with tempfile.TemporaryDirectory() as folder:
            notebook = executed(nbformat.read(path, as_version=4), Path(folder))
        nbformat.write(notebook, path)
        print(f"{path.name}: {len(notebook.cells)} cells, {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main(sys.argv[1:])
