"""The built book and the kernels that run it, served from one address: a Jupyter Server extension."""


def _jupyter_server_extension_points():
    return [{"module": "nanoengine.live.extension"}]
