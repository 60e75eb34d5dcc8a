// Draws each div.ne-vega: those of the built page, and those that live cells add. Colours follow the page's theme.
(() => {
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  function themed() {
    const text = css("--pst-color-text-base"), muted = css("--pst-color-text-muted"), grid = css("--pst-color-border");
    const axis = { labelColor: muted, titleColor: text, gridColor: grid, domainColor: muted, tickColor: muted };
    return {
      background: "transparent",
      title: { color: text, subtitleColor: muted },
      axis,
      legend: { labelColor: text, titleColor: text },
      header: { labelColor: text, titleColor: text },
      text: { color: text },
      rule: { color: muted },
    };
  }

  function draw(el, again) {
    if (!el._spec) {
      const script = el.querySelector("script[type='application/json']");
      if (!script) return;
      el._spec = JSON.parse(script.textContent);
    }
    if (el._host && !again) return;
    const host = el._host || (el._host = el.appendChild(document.createElement("div")));
    host.className = "ne-vega-host";
    const kept = el._view?.signalParams?.() || {};
    vegaEmbed(host, el._spec, { actions: false, renderer: "svg", config: themed() })
      .then(({ view }) => {
        // A redraw for another theme keeps what the reader set.
        const names = (el._spec.params || []).filter((p) => p.bind).map((p) => p.name);
        for (const name of names) if (name in kept) view.signal(name, kept[name]);
        view.signalParams = () => Object.fromEntries(names.map((n) => [n, view.signal(n)]));
        el._view = view;
        return view.runAsync();
      })
      .then(() => el.setAttribute("data-drawn", ""))
      .catch((error) => (host.textContent = "This chart could not be drawn: " + error.message));
  }

  const all = (again) => document.querySelectorAll("div.ne-vega").forEach((el) => draw(el, again));
  all(false);
  new MutationObserver(() => all(true)).observe(document.documentElement, {
    attributes: true,
    attributeFilter: ["data-theme"],
  });
  new MutationObserver(() => all(false)).observe(document.querySelector("article") || document.body, {
    childList: true,
    subtree: true,
  });
})();
