"""Reports: a notebook executed on given records, as one HTML file that needs nothing else."""

from base64 import b64decode
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbconvert import HTMLExporter
from traitlets.config import Config

from tlscost import kant
from tlscost.errors import FAILED, TlscostError
from tlscost.frame import record_paths
from tlscost.paths import root

__all__ = ["execute", "notebook_for", "render"]

_TEMPLATES = Path(__file__).parent / "templates"
_TIMEOUT_S = 600


def notebook_for(paths: Iterable[Path | str]) -> str:
    """Name the notebook that suits records: kant2000 for that study's, else quickstart."""
    return "kant2000" if kant.is_study(paths) else "quickstart"


def render(paths: Iterable[Path | str], out_dir: Path | str, name: str = "quickstart") -> Path:
    """Execute notebooks/NAME.ipynb on records; write OUT_DIR/report.html and its figures.

    A figure is also left as OUT_DIR/figures/NAME.png, where the notebook's cell has that name.

    Parameters
    ----------
    paths : iterable of Path or str
        Record files, or directories to search for them.
    out_dir : Path or str
        Made if it is not there.
    name : str
        Which notebook.

    Returns
    -------
    Path
        The report: self-contained, it loads nothing from anywhere.
    """
    records = [str(path.resolve()) for path in record_paths(paths)]
    out_dir = Path(out_dir)
    executed = execute(root() / "notebooks" / f"{name}.ipynb", {"paths": records})
    exporter = HTMLExporter(  # type: ignore[no-untyped-call]
        template_name="report",
        extra_template_basedirs=[str(_TEMPLATES)],
        exclude_input=True,
        exclude_input_prompt=True,
        exclude_output_prompt=True,
    )
    html, _ = exporter.from_notebook_node(executed)
    page = out_dir / "report.html"
    try:
        (out_dir / "figures").mkdir(parents=True, exist_ok=True)
        page.write_text(html)
        for figure, png in _figures(executed).items():
            (out_dir / "figures" / f"{figure}.png").write_bytes(png)
    except OSError as error:
        raise TlscostError(f"{error.filename}: cannot be written: {error.strerror}") from error
    return page


def _figures(executed: nbformat.NotebookNode) -> dict[str, bytes]:
    """PNG images by the names of the cells that drew them."""
    return {
        cell.metadata.name: b64decode(output.data["image/png"])
        for cell in executed.cells
        if "name" in cell.metadata
        for output in cell.outputs
        if "image/png" in output.get("data", {})
    }


def execute(notebook: Path, parameters: dict[str, Any]) -> nbformat.NotebookNode:
    """Execute a notebook after setting the variables of its cell tagged `parameters`.

    Raises
    ------
    TlscostError
        A cell failed, a record was refused, or the notebook has no such cell.
    """
    node: nbformat.NotebookNode = nbformat.read(notebook, as_version=4)  # type: ignore[no-untyped-call]
    tagged = [cell for cell in node.cells if "parameters" in cell.metadata.get("tags", [])]
    if len(tagged) != 1:
        raise TlscostError(
            f"{notebook}: expected one cell tagged `parameters`, found {len(tagged)}"
        )
    given = "\n".join(f"{name} = {value!r}" for name, value in parameters.items())
    tagged[0].source += "\n" + given
    with TemporaryDirectory() as sockets:
        # Sockets in a private directory rather than open ports, which other users could reach.
        transport = {"transport": "ipc", "ip": f"{sockets}/kernel"}
        client = NotebookClient(
            node,
            timeout=_TIMEOUT_S,
            resources={"metadata": {"path": str(notebook.parent)}},
            config=Config({"KernelManager": transport}),
        )
        try:
            client.execute()
        except CellExecutionError as error:
            if error.ename == TlscostError.__name__:  # meant for the user as it is: a bad record
                raise TlscostError(error.evalue) from error
            raise TlscostError(
                f"{notebook}: a cell failed: {error.ename}: {error.evalue}", FAILED
            ) from error
    return node
