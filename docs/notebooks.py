"""Runs the notebooks and keeps their outputs, which the site shows.

python docs/notebooks.py
"""

from pathlib import Path

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parent / "notebooks"


def main() -> None:
    """Executes every notebook in place; what changes from run to run is left out."""
    for path in sorted(FOLDER.glob("*.ipynb")):
        notebook = nbformat.read(path, as_version=4)
        NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
        notebook.metadata = {"kernelspec": notebook.metadata["kernelspec"]}
        for cell in notebook.cells:
            cell.metadata = {}
            if cell.cell_type == "code":
                # Progress bars and warnings are not what a reader came for.
                cell.outputs = [out for out in cell.outputs if out.get("name") != "stderr"]
        nbformat.write(notebook, path)
        print(path.name)


if __name__ == "__main__":
    main()
