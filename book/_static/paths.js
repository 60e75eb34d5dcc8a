// Runs before the vendored bundles, and tells them where they lie.
window.__vendor = new URL("vendor/", document.currentScript.src).href;
