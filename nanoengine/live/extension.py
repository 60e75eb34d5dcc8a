"""Serves the built book at /book/ of a Jupyter server, to those who hold its token, with the kernels beside it."""

from pathlib import Path

from jupyter_server.base.handlers import AuthenticatedFileHandler, JupyterHandler
from jupyter_server.utils import url_path_join
from tornado import web

BOOK_FOLDER = Path("_build", "html")


class BookHandler(AuthenticatedFileHandler):
    """Files of the built book, behind the server's login."""

    @property
    def content_security_policy(self):
        """The server's ordinary policy: the parent's sandbox would cut the page off from the kernels.

        Right only because these files are our own build, not what a notebook's user put there.
        """
        return JupyterHandler.content_security_policy.fget(self)

    def check_xsrf_cookie(self):
        """No check: reading a page changes nothing, and requests from within a frame carry no Referer."""

    def set_headers(self):
        super().set_headers()
        if self.current_user:
            _ = self.xsrf_token  # reading it sets the cookie that the page must echo to start a kernel

    def write_error(self, status_code, **kwargs):
        """The book's own page for what is not there would be out of place here: one plain sentence."""
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        self.finish(f"{status_code}: no such page in this book\n" if status_code == 404 else f"{status_code}\n")


def _load_jupyter_server_extension(app):
    base = app.web_app.settings["base_url"]
    root = (Path(app.root_dir) / BOOK_FOLDER).resolve()
    app.web_app.add_handlers(
        ".*$",
        [
            (url_path_join(base, "book"), web.RedirectHandler, {"url": url_path_join(base, "book/index.html")}),
            (url_path_join(base, "book", "(.*)"), BookHandler, {"path": str(root), "default_filename": "index.html"}),
        ],
    )


def _jupyter_server_extension_points():
    return [{"module": "nanoengine.live.extension"}]
