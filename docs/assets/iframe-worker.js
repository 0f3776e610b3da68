// A browser starts no worker for a page that was opened from disk, and the search needs one.
// This one runs the same script in a hidden frame of the page. As with a worker, messages are
// copies and arrive later.
if (location.protocol === "file:") {
  const later = (receive, message) => {
    const data = structuredClone(message);
    setTimeout(() => receive({ data }));
  };

  window.Worker = class FrameWorker {
    constructor(url) {
      this.onmessage = null;
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      this.inside = this.frame.contentWindow;
      this.inside.postMessage = (data) => later((message) => this.onmessage?.(message), data);
      const script = this.inside.document.createElement("script");
      script.src = new URL(url, location.href).href;
      this.loaded = new Promise((resolve) => (script.onload = resolve));
      this.inside.document.body.append(script);
    }

    postMessage(data) {
      this.loaded.then(() => later((message) => this.inside.onmessage(message), data));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
