"""ipywidgets panels: they need a kernel, and compute with the package itself.

Each also carries an HTML twin: what the built page shows in its place, where no kernel runs.
"""

import html

import ipywidgets as widgets
import pandas as pd
from IPython.display import display

from nanoengine.costmodel.decode import price_step
from nanoengine.costmodel.device import DeviceSpec
from nanoengine.costmodel.fit import fit_steps
from nanoengine.costmodel.model import ModelSpec, model_names
from nanoengine.datasets import load_table
from nanoengine.errors import NanoengineError


class Panel(widgets.VBox):
    """Controls above a result. Without a kernel the page shows `caption` and the result as it was first computed."""

    def __init__(self, caption: str, controls: list[widgets.Widget], result: widgets.HTML, *more: widgets.Widget):
        super().__init__([*controls, result, *more])
        self.caption, self.result = caption, result

    def _repr_mimebundle_(self, **kwargs):
        bundle = super()._repr_mimebundle_(**kwargs)
        bundle["text/html"] = (
            f"<div class='ne-needs-kernel'><p>{html.escape(self.caption)} <em>This panel needs a running kernel: make "
            f"the page live, or open the chapter in JupyterLab.</em></p>{self.result.value}</div>"
        )
        return bundle


def price_panel(model: str = "qwen3-0.6b", device: str = "rtx-4070") -> Panel:
    """Choose a model, a device, batch and history; reads back the price of a step and of a token."""
    devices = load_table("devices")
    pick_model = widgets.Dropdown(options=model_names(), value=model, description="model")
    pick_device = widgets.Dropdown(
        options=list(zip(devices.name, devices.device, strict=True)), value=device, description="device"
    )
    batch = widgets.IntSlider(1, 1, 256, description="batch")
    history = widgets.IntSlider(1024, 256, 32_768, 256, description="history")
    price = widgets.HTML()

    def update(_=None):
        try:
            row = price_step(
                ModelSpec.from_config(pick_model.value), DeviceSpec.named(pick_device.value), batch.value, history.value
            ).iloc[0]
            price.value = (
                f"{pick_model.value} on {pick_device.label}, batch {batch.value}, history {history.value:,}: "
                f"<b>{row.step_ms:.2f} ms</b> a step, <b>{row.per_token_ms:.3f} ms</b> a token; weights "
                f"{row.weight_ms:.2f} ms, KV {row.kv_ms:.2f} ms; {row.binds} bind. A floor, with no overhead."
            )
        except NanoengineError as error:
            price.value = html.escape(str(error))

    controls = [pick_model, pick_device, batch, history]
    for control in controls:
        control.observe(update, "value")
    update()
    return Panel("Price any model of data/models/ on any device of data/devices.csv.", controls, price)


def fit_panel(cells: pd.DataFrame, chart) -> Panel:
    """Choose which batches and how many terms a fit of measured cells takes.

    cells: columns batch, kv_bytes, step_ms. chart(cells, fit) draws the chosen fit; called anew at each change.
    """
    sizes = sorted(int(b) for b in cells.batch.unique())
    boxes = [widgets.Checkbox(value=True, description=f"batch {size}", indent=False) for size in sizes]
    third = widgets.Checkbox(value=False, description="a cost per request", indent=False)
    text, picture = widgets.HTML(), widgets.Output()

    def update(_=None):
        chosen = cells[cells.batch.isin([size for size, box in zip(sizes, boxes, strict=True) if box.value])]
        try:
            fit = fit_steps(chosen, per_request=third.value)
        except NanoengineError as error:
            text.value = html.escape(str(error))
            return
        text.value = f"<pre>{html.escape(str(fit))}</pre>"
        with picture:
            picture.clear_output(wait=True)
            display(chart(chosen, fit))

    for control in (*boxes, third):
        control.observe(update, "value")
    update()
    caption = "Choose which batch sizes the fit takes, and whether a request costs something of its own."
    return Panel(caption, [widgets.HBox([*boxes, third])], text, picture)
