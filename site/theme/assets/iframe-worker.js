// Workers for pages from file://, where browsers refuse them: the search runs in a hidden frame. The
// theme's own remedy comes from a network.
"use strict";
if (location.protocol === "file:")
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = Object.assign(document.createElement("iframe"), { hidden: true });
      const head = `<script>
        postMessage = (data) => parent.postMessage(data, "*");
        importScripts = async (...urls) => {
          for (const src of urls)
            await new Promise((done, failed) => document.head.append(Object.assign(
              document.createElement("script"), { src, onload: done, onerror: failed })));
        };
      <\/script>`;
      const loaded = new Promise((done) => frame.addEventListener("load", done));
      frame.srcdoc = `<html><head>${head}</head><body><script src="${url}"><\/script></body></html>`;
      document.body.append(frame);
      this.postMessage = (data) =>
        loaded.then(() => frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })));
      this.terminate = () => frame.remove();
      window.addEventListener("message", ({ source, data }) => {
        if (source !== frame.contentWindow) return;
        const event = new MessageEvent("message", { data });
        this.dispatchEvent(event);
        this.onmessage?.(event);
      });
    }
  };
