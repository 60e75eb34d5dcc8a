// ipywidgets and thebe speak to MathJax 2; the page has MathJax 3. Any MathJax object gets the one call they use.
(() => {
  if (window.__mathjax2) return;
  window.__mathjax2 = true;
  const typeset = (el) => window.MathJax.typesetPromise?.([el]).catch((e) => console.warn(e));
  const hub = {
    Config() {},
    Configured() {},
    Register: { StartupHook() {} },
    Queue(...jobs) {
      for (const job of jobs) {
        const el = Array.isArray(job) && job.find((x) => x instanceof Element);
        if (el) typeset(el);
      }
    },
  };
  const mended = (v) => {
    if (v && !v.Hub) v.Hub = hub;
    return v;
  };
  let current = mended(window.MathJax);
  // MathJax replaces its global as it starts, so a plain assignment would be lost.
  Object.defineProperty(window, "MathJax", { configurable: true, get: () => current, set: (v) => (current = mended(v)) });
})();
