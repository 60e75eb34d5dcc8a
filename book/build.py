"""`make book`: build the static site into _build/html, unless nothing that it shows has changed since."""

import hashlib
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HTML = ROOT / "_build" / "html"
STAMP = HTML / ".inputs"
SOURCES = ("_config.yml", "_toc.yml", "index.md", "book", "chapters", "data", "nanoengine/viz", "requirements.txt")


def inputs_digest() -> str:
    """One hash over every file that the site is made of."""
    digest = hashlib.sha256()
    for source in SOURCES:
        path = ROOT / source
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.is_file() and "__pycache__" not in file.parts and ".ipynb_checkpoints" not in file.parts:
                digest.update(f"{file.relative_to(ROOT)}\0".encode() + file.read_bytes())
    return digest.hexdigest()


def main() -> int:
    digest = inputs_digest()
    if STAMP.exists() and STAMP.read_text() == digest:
        print("the book in _build/html is up to date")
        return 0
    started = time.monotonic()
    command = [
        str(Path(sys.executable).with_name("jupyter-book")),
        "build",
        ".",
        "--all",
        "-W",
        "-n",
        "--keep-going",
        "--quiet",
    ]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if run.returncode:
        sys.stderr.write(run.stdout + run.stderr)
        print("the book was not built: see the messages above", file=sys.stderr)
        return 1
    STAMP.write_text(digest)
    print(f"the book was built into _build/html in {time.monotonic() - started:.0f} s; open _build/html/index.html")
    return 0


if __name__ == "__main__":
    sys.exit(main())
