// Live cells, where the page comes from `nanoengine live`: the server answers, so the page offers to use its kernels.
// Opened from a file or any other host, the page stays as it was built.
(() => {
  const here = new URL(document.currentScript.src);
  const vendor = new URL("vendor/", here);
  const server = new URL("../../", here); // <server>/book/_static/live.js
  const page = decodeURI(location.pathname.replace(/^.*?\/book\//, "").replace(/\.html$/, ""));
  const SETUP = "import os; os.environ['BOOK_LIVE'] = '1'"; // charts then come as what charts.js draws

  const load = (tag, attributes) =>
    new Promise((done, failed) => {
      const el = Object.assign(document.createElement(tag), attributes);
      el.onload = done;
      el.onerror = () => failed(new Error("the server did not deliver " + (attributes.src || attributes.href)));
      document.head.append(el);
    });

  function button(text, title, onclick) {
    const el = Object.assign(document.createElement("button"), { type: "button", textContent: text, title, onclick });
    el.className = "ne-live-button";
    return el;
  }

  class Bar {
    constructor() {
      this.el = Object.assign(document.createElement("div"), { className: "ne-live" });
      this.el.setAttribute("role", "region");
      this.el.setAttribute("aria-label", "Live cells");
      this.start = button("Make this page live", "Start a Python kernel and run the cells of this page", () => this.go());
      this.lab = Object.assign(document.createElement("a"), {
        className: "ne-live-lab",
        textContent: "Open in JupyterLab",
        href: new URL("lab/tree/" + page + ".ipynb", server).href,
      });
      this.status = Object.assign(document.createElement("span"), { className: "ne-live-status" });
      this.status.setAttribute("role", "status");
      this.el.append(this.start, this.lab, this.status);
      this.note = ""; // what happened to the kernel, told until the next cell runs
      this.settling = false; // while a new kernel is being set up, its own status means nothing to the reader
    }

    say(text, state = "") {
      this.status.textContent = text;
      this.el.dataset.state = state;
    }

    async go() {
      this.start.disabled = true;
      try {
        this.say("loading", "busy");
        if (!window.thebe) await loadThebe();
        this.say("starting a kernel", "busy");
        this.session = await bootstrap();
        if (!this.session) throw new Error("the server started no kernel");
        await this.watch();
        const runAll = button("Run all", "Run every cell of this page, from the top", () => this.runAll());
        const stop = button("Interrupt", "Stop the cell that is running", () => this.kernel.interrupt());
        const restart = button("Restart", "Throw away all variables and start afresh", () => this.restart());
        this.start.replaceWith(runAll, stop, restart);
        this.say("ready", "idle");
      } catch (error) {
        this.start.disabled = false;
        this.fail(error);
      }
    }

    get kernel() {
      return this.session.kernel;
    }

    async watch() {
      await this.setUp();
      this.kernel.statusChanged.connect((_, status) => {
        const words = { busy: "running", idle: "ready", autorestarting: "restarting", starting: "restarting" };
        if (status === "dead") this.say("The kernel died. Press Restart to start a new one.", "lost");
        else if (status === "autorestarting") {
          this.died = this.settling = true;
          this.say("The kernel died; a new one is starting.", "busy");
        } else if (this.died && status === "idle") {
          this.died = false;
          this.afterDeath();
        } else if (!this.settling) {
          this.say((words[status] || status) + this.note, status);
        }
      });
      this.kernel.anyMessage.connect((_, { msg, direction }) => {
        if (direction === "send" && msg.header.msg_type === "execute_request" && !msg.content.silent) this.note = "";
      });
      let patience;
      this.kernel.connectionStatusChanged.connect((_, status) => {
        clearTimeout(patience); // a restart interrupts the connection for a moment
        const gone = () => this.say("The server does not answer. Is `nanoengine live` still running?", "lost");
        if (status === "connecting") patience = setTimeout(gone, 1500);
        if (status === "connected" && !this.settling) this.say("ready" + this.note, "idle");
      });
    }

    async setUp() {
      await this.kernel.requestExecute({ code: SETUP, silent: true }).done;
    }

    async afterDeath() {
      await this.setUp().catch((error) => this.fail(error));
      this.settling = false;
      this.note = ": a new kernel, since the last one died; all variables are gone";
      this.say("ready" + this.note, "idle");
    }

    async runAll() {
      await thebe.notebook.executeAll(true).catch((error) => this.fail(error));
    }

    async restart() {
      this.say("restarting", "busy");
      try {
        this.settling = true;
        await this.kernel.restart();
        await this.setUp();
        this.note = ": all variables are gone";
        this.say("ready" + this.note, "idle");
      } catch (error) {
        this.fail(error);
      } finally {
        this.settling = false;
      }
    }

    fail(error) {
      const gone = error instanceof TypeError || /fetch|network/i.test(String(error));
      const why = gone ? "the server does not answer; is `nanoengine live` still running?" : error.message || error;
      this.say("This did not work: " + why, "lost");
    }
  }

  async function loadThebe() {
    window.MathJax = window.MathJax || {}; // a page with no formulas has none
    await load("link", { rel: "stylesheet", href: new URL("thebe/thebe.css", vendor).href });
    if (!document.querySelector("script[src*='charts.js']")) {
      await load("script", { src: new URL("vega.js", vendor).href });
      await load("script", { src: new URL("charts.js", here).href });
    }
    await load("script", { src: new URL("thebe/index.js", vendor).href });
  }

  // thebe pairs the n-th source with the n-th output, so a cell that has no output gets an empty one.
  function markCells() {
    document.querySelectorAll("div.cell").forEach((cell) => {
      const source = cell.querySelector(".cell_input pre");
      if (!source) return;
      cell.querySelectorAll("button.copybtn").forEach((b) => b.remove());
      source.dataset.executable = "";
      source.dataset.language = "python";
      let output = cell.querySelector(".cell_output");
      if (!output) {
        output = Object.assign(document.createElement("div"), { className: "cell_output docutils container" });
        cell.append(output);
      }
      output.dataset.output = "";
    });
  }

  async function bootstrap() {
    if (!document.querySelector("[data-executable]")) markCells();
    const { session } = await thebe.bootstrap({
      useBinder: false,
      requestKernel: true,
      mountStatusWidget: false,
      mountActivateWidget: false,
      mountRunAllButton: false,
      mountRestartButton: false,
      mountRestartAllButton: false,
      codeMirrorConfig: { theme: "default", mode: "python", lineNumbers: false, lineWrapping: true },
      mathjaxUrl: new URL("mathjax2-shim.js", here).href,
      serverSettings: { baseUrl: server.href.replace(/\/$/, ""), token: "", appendToken: false },
      // The path sets the working directory. It is unlike the notebook's own and unlike any other tab's, so that each
      // has a kernel to itself.
      kernelOptions: { kernelName: "python3", path: `${page}.live-${crypto.randomUUID().slice(0, 8)}.ipynb` },
    });
    return session;
  }

  async function init() {
    if (!location.protocol.startsWith("http") || !location.pathname.includes("/book/")) return;
    const answer = await fetch(new URL("api/status", server), { credentials: "same-origin" }).catch(() => null);
    if (!answer?.ok) return;
    document.querySelector("article h1")?.after(new Bar().el);
    document.documentElement.dataset.live = "";
  }
  document.addEventListener("DOMContentLoaded", init);
})();
